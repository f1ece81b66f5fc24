"""What a reader says to a wrong frame, and what that costs it."""

from __future__ import annotations

import tracemalloc

import pytest

from protocol.errors import ProtocolError
from protocol.frame import open_frame
from protocol.manifest import Manifest
from tests.protocol.samples import MANIFEST, SWARM


def refused(
    frame: bytes,
    error: type[ProtocolError],
    match: str | None = None,
    manifest: Manifest = MANIFEST,
) -> None:
    with pytest.raises(ProtocolError, match=match) as caught:
        open_frame(frame, SWARM, manifest)
    assert type(caught.value) is error, caught.value


def peak_of(frame: bytes, error: type[ProtocolError], manifest: Manifest = MANIFEST) -> int:
    """Bytes allocated at most while the frame is refused."""
    tracemalloc.start()
    refused(frame, error, manifest=manifest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
