"""Addresses of peers met before, kept in a file so that a node finds the swarm again."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from swarm.common.fair_limits import KNOWN
from swarm.common.util import make_private
from swarm.transport.redial import peer_of

logger = logging.getLogger(__name__)

MAX_ADDRESSES = 64
MOST_EACH = 4
MAX_FILE_BYTES = 1 << 16


class PeerCache:
    """Full multiaddresses, one a line, the most useful first; ``path`` None keeps none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._addresses: dict[str, None] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """What is remembered now."""
        return tuple(self._addresses)

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
        return self.addresses

    def meet(self, addresses: Iterable[str]) -> bool:
        """Note peers at once, in the places that are free, and write the file; whether any is new.

        Nobody is pushed out for them: who may be is :meth:`remember`'s to say, now and then.
        """
        met = [a for a in _few_of_each(addresses) if a not in self._addresses]
        new = met[: MAX_ADDRESSES - len(self._addresses)]
        if new:
            self._addresses.update(dict.fromkeys(new))
            self._write()
        return bool(new)

    def remember(
        self, addresses: Iterable[str], standing: Callable[[str], float] = lambda peer: 0.0
    ) -> None:
        """Note peers that are connected now and write the file anew, all or nothing.

        Peers of standing come first. A crowd of strangers, some of whom are drawn, takes at most
        half of the places from those who were met before.

        Args:
            standing: of a peer id.
        """
        met = list(_few_of_each(addresses))
        older = [a for a in self._addresses if a not in met]
        places = max(MAX_ADDRESSES // 2, MAX_ADDRESSES - len(older))
        drawn = set(random.sample(met, min(places, len(met))))
        met.sort(key=lambda address: address not in drawn)
        everybody = [*met[: len(drawn)], *older, *met[len(drawn) :]]
        standings = {peer: standing(peer) for peer in {peer_of(a) for a in everybody} if peer}

        def rank(address: str) -> float:
            known = standings.get(peer_of(address), 0.0)
            return -known if known >= KNOWN else 0.0

        self._addresses = dict.fromkeys(sorted(everybody, key=rank)[:MAX_ADDRESSES])
        self._write()

    def _write(self) -> None:
        if self._path is None or not self._addresses:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            make_private(draft).write_text(
                "".join(f"{a}\n" for a in self._addresses), encoding="ascii"
            )
            draft.replace(self._path)
        except OSError as error:
            logger.warning("peer cache %s was not written: %s", self._path, error)


def _few_of_each(addresses: Iterable[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for address in dict.fromkeys(addresses):
        peer = peer_of(address) or address
        seen[peer] += 1
        if seen[peer] <= MOST_EACH:
            yield address
