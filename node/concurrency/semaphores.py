"""Semaphores, which the network's library makes as soon as it is imported."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

from node.errors import NodeError

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps them."""


def check_semaphores() -> None:
    """Make one and give it back.

    Raises:
        NodeError: none can be made here.
    """
    try:
        get_context("fork").Semaphore()  # the others start a process for it
    except (ImportError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NodeError(
            "no semaphore can be made in shared memory",
            f"{SHARED_MEMORY} ({reason})",
            "Free some space there, or make it larger, as with: docker run --shm-size=1g.",
        ) from error
