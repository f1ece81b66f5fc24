"""What simulated nodes remember together, since they are in one process and read the same bytes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from protocol import announcement
from protocol.frame import open_frame
from swarm import admission


@dataclass(frozen=True, slots=True)
class Openings:
    """Openers that open each message once in this process, not once at every node.

    A real node remembers what it opened, too, but only what it met itself.
    """

    frame: admission.Opener
    record: announcement.Opener

    @classmethod
    def remembering(cls, messages: int) -> Openings:
        """Those that remember the latest so many of each."""
        return cls(
            lru_cache(messages)(open_frame), lru_cache(messages)(announcement.open_announcement)
        )


@contextmanager
def no_collection() -> Iterator[None]:
    """Leave garbage in circles where it is: to look for it takes longer than a node's turn."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
