"""Who is known to be useful, as the network's parts ask it, by author or by peer id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.errors import BadKey
from protocol.identity import author_of
from swarm.common.clock import Clock

Standing = Callable[[bytes], float]
"""Author's public key -> standing in [0, 1]; see :meth:`swarm.accounts.Accounts.standing`."""

KNOWN = 0.25
"""Standing from which a peer counts as known to be useful."""

KEPT = 0.25
"""Part of every bounded thing that strangers cannot take from known peers."""

REMEMBERED_SECONDS = 5.0
MAX_REMEMBERED = 4096


class Remembers(Protocol):
    """Remembers what authors proved to be worth, as :class:`swarm.accounts.Accounts` does."""

    def standing(self, author: bytes) -> float:
        """Standing of an author, in [0, 1]."""

    def standings(self) -> Mapping[bytes, float]:
        """The standing of everyone who has any."""


class OwnFirst:
    """What is known of authors, with this node's own at the top: it keeps its records like any."""

    def __init__(self, own: bytes, accounts: Remembers) -> None:
        self._own = own
        self._accounts = accounts

    def __call__(self, author: bytes) -> float:
        """Standing of an author, in [0, 1]."""
        return 1.0 if author == self._own else self._accounts.standing(author)

    def all(self) -> dict[bytes, float]:
        """The standing of everyone who has any."""
        return {**self._accounts.standings(), self._own: 1.0}


class Standings:
    """Asks for standings at most every few seconds, for strangers may make it ask very often.

    Nobody is known before :meth:`use` has told whom to ask.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ask: Standing | None = None
        self._remembered: dict[bytes, tuple[float, float]] = {}

    def use(self, standing: Standing) -> None:
        """Ask ``standing`` from now on."""
        self._ask = standing
        self._remembered.clear()

    def of(self, author: bytes) -> float:
        """Standing of an author, in [0, 1]."""
        if self._ask is None:
            return 0.0
        now = self._clock.monotonic()
        value, until = self._remembered.get(author, (0.0, now))
        if until > now:
            return value
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        value = self._ask(author)
        self._remembered[author] = value, now + REMEMBERED_SECONDS
        return value

    def of_peer(self, peer: str) -> float:
        """Standing of a peer by its id; 0 for an id that is no author's."""
        if self._ask is None:
            return 0.0
        try:
            return self.of(author_of(peer))
        except BadKey:
            return 0.0

    def knows(self, peer: str) -> bool:
        """Whether a peer is known to be useful."""
        return self.of_peer(peer) >= KNOWN
