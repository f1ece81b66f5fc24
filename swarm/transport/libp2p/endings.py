"""Ending what may be gone already, however its user was cancelled."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0


async def end(how: Callable[[], Awaitable[object]]) -> None:
    """End something by ``how``, which may fail: it is gone in any case. On trio's thread."""
    import trio

    with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_SECONDS):
        try:
            await how()
        except Exception as error:  # noqa: BLE001 - of a library about a connection that is gone
            logger.debug("ending a connection or stream: %r", error)
