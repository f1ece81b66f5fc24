"""How many frames may be pulled, and from whom: pure bookkeeping of one epoch after the other."""

from __future__ import annotations

from collections.abc import Collection

from swarm.common.known_peers import KEPT

TRIES = 4
"""Times the pulls of an epoch that may be begun for strangers, counting those that fail."""


class PullAllowance:
    """An epoch's pulls and the places for those under way.

    A quarter of both is kept for the authors known to be useful, as far as there are so many. A
    pull that brings nothing is given back.

    Args:
        pulls: that bring something, each epoch at most.
        concurrent: under way at a time.
    """

    def __init__(self, pulls: int, concurrent: int) -> None:
        self._pulls = pulls
        self._concurrent = concurrent
        self._running: set[bytes] = set()
        self._served: set[bytes] = set()
        self._left = 0
        self._tries = 0

    def begin(self) -> None:
        """A new epoch: everything may be pulled again, less what is under way."""
        self._left = self._pulls - len(self._running)
        self._tries = TRIES * self._pulls
        self._served.clear()

    @property
    def spent(self) -> bool:
        """Whether no pull from anybody may begin now."""
        return self._left <= 0 or len(self._running) >= self._concurrent

    def allows(self, author: bytes, useful: Collection[bytes]) -> bool:
        """Whether a pull from ``author`` may begin.

        Args:
            useful: authors known to be useful who announce something.
        """
        known = author in useful
        kept_pulls = kept_places = 0
        if not known:
            waiting = sum(a not in self._served and a not in self._running for a in useful)
            kept_pulls = min(int(self._pulls * KEPT), waiting)
            kept_places = min(int(self._concurrent * KEPT), waiting)
            if self._tries <= 0:
                return False
        return self._left > kept_pulls and len(self._running) < self._concurrent - kept_places

    def take(self, author: bytes, useful: Collection[bytes]) -> bool:
        """Whether a pull from ``author`` may begin, which thereby does."""
        if not self.allows(author, useful):
            return False
        self._running.add(author)
        self._left -= 1
        self._tries -= author not in useful
        return True

    def end(self, author: bytes, *, delivered: bool) -> None:
        """Note that a pull is over."""
        self._running.remove(author)
        if delivered:
            self._served.add(author)
        else:
            self._left += 1
