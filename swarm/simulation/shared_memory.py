"""What simulated nodes remember together, since they are in one process and read the same bytes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from protocol import announcement
from protocol.frame import open_frame
from swarm import directory
from swarm.admission import Opener

OPENERS = announcement, directory
"""Modules that open announcements under the name ``open_announcement``."""


@contextmanager
def shared_openings(records: int) -> Iterator[Opener]:
    """Have every announcement and frame opened once in this process, not once at every node.

    A real node remembers what it opened, too, but only what it met itself. Outside of the block
    nothing is changed.

    Args:
        records: remembered, of announcements and of frames.

    Yields:
        An :func:`protocol.frame.open_frame` that remembers.
    """
    alone = announcement.open_announcement
    together = lru_cache(records)(alone)
    for module in OPENERS:
        setattr(module, alone.__name__, together)
    try:
        yield lru_cache(records)(open_frame)
    finally:
        for module in OPENERS:
            setattr(module, alone.__name__, alone)


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
