"""Addresses of peers met before, kept in a file so that a node finds the swarm again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_ADDRESSES = 64
MAX_FILE_BYTES = 1 << 16


class PeerCache:
    """Full multiaddresses, one a line, most recently met first; ``path`` None keeps none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._addresses: dict[str, None] = {}

    def load(self) -> tuple[str, ...]:
        """What the file holds. A missing file is empty; so is a damaged one, with a warning."""
        if self._path is None or not self._path.exists():
            return ()
        try:
            if self._path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
            lines = self._path.read_text(encoding="ascii").splitlines()
            if not all(line.startswith("/") for line in lines):
                raise ValueError("not a list of multiaddresses")
        except (OSError, ValueError) as error:
            logger.warning("peer cache %s is unreadable (%s); starting without", self._path, error)
            return ()
        self._addresses = dict.fromkeys(lines[:MAX_ADDRESSES])
        return tuple(self._addresses)

    def remember(self, addresses: Iterable[str]) -> None:
        """Note peers that are connected now and write the file anew, all or nothing."""
        self._addresses = dict.fromkeys((*addresses, *self._addresses))
        for oldest in list(self._addresses)[MAX_ADDRESSES:]:
            del self._addresses[oldest]
        if self._path is None or not self._addresses:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text("".join(f"{a}\n" for a in self._addresses), encoding="ascii")
            draft.replace(self._path)
        except OSError as error:
            logger.warning("peer cache %s was not written: %s", self._path, error)
