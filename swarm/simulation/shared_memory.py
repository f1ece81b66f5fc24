"""What simulated nodes remember together, since they are in one process and read the same bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from protocol import announcement
from protocol.frame import open_frame
from protocol.manifest import Manifest
from swarm import directory
from swarm.admission import Opener

T = TypeVar("T")
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
    together = _remembering(alone, records)
    for module in OPENERS:
        setattr(module, alone.__name__, together)
    try:
        yield _remembering(open_frame, records)
    finally:
        for module in OPENERS:
            setattr(module, alone.__name__, alone)


def _remembering(
    open_it: Callable[[bytes, bytes, Manifest], T], most: int
) -> Callable[[bytes, bytes, Manifest], T]:
    """One that opens each message once, and forgets those first that it opened first.

    A simulation has one swarm and one manifest, so that the bytes alone say what is in them.
    """
    opened: dict[bytes, T] = {}

    def again(data: bytes, swarm_id: bytes, manifest: Manifest) -> T:
        found = opened.get(data)
        if found is None:
            found = opened[data] = open_it(data, swarm_id, manifest)
            if len(opened) > most:
                del opened[next(iter(opened))]
        return found

    return again


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
