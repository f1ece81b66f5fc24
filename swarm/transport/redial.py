"""Whom to dial again, and when: a pure state machine on an injected clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarm.common.clock import Clock

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
LOST_SECONDS = 5.0
"""For a peer met before to come back by itself: one behind a router that starts again dials from
the port that it would be dialled at, and of two who dial each other so, neither gets through."""

LONGEST_FOR_BOOTSTRAP = 10.0
AT_A_TIME = 8
MAX_REMEMBERED = 64


class Redial:
    """Doubling pauses between the attempts at each address, until its peer is connected.

    Bootstrap addresses are dialled whenever their peer is missing. Of peers met before, all are
    dialled while nobody is connected, and otherwise a few at a time: a swarm that was cut in two
    has peers on either side, and its bootstrap peers may be gone by the time that it is whole.
    """

    def __init__(self, bootstrap: Iterable[str], remembered: Iterable[str], clock: Clock) -> None:
        self._bootstrap = tuple(dict.fromkeys(bootstrap))
        self._remembered: dict[str, None] = {}
        self._clock = clock
        self._next: dict[str, tuple[float, float]] = {}
        self.remember(remembered)

    def remember(self, addresses: Iterable[str]) -> None:
        """Peers met, in place of those before; the first ``MAX_REMEMBERED`` of them."""
        wanted = [a for a in dict.fromkeys(addresses) if a not in self._bootstrap]
        self._remembered = dict.fromkeys(wanted[:MAX_REMEMBERED])
        dialled = {*self._bootstrap, *self._remembered}
        self._next = {address: at for address, at in self._next.items() if address in dialled}

    def due(self, connected: Collection[str]) -> tuple[str, ...]:
        """Addresses to dial now, given the peer ids connected; each is thereby taken as tried."""
        now = self._clock.monotonic()
        wanted = [a for a in self._bootstrap if self._waited(a, connected, now)]
        met = [a for a in self._remembered if self._waited(a, connected, now)]
        # Whoever was tried longest ago first, so that each has its turn.
        met.sort(key=lambda address: self._next.get(address, (0.0, 0.0))[0])
        ready = wanted + (met[:AT_A_TIME] if connected else met)
        for address in ready:
            _, pause = self._next.get(address, (now, FIRST_SECONDS))
            self._next[address] = now + pause, min(2 * pause, self._longest(address))
        return tuple(ready)

    def _waited(self, address: str, connected: Collection[str], now: float) -> bool:
        """Whether the peer is missing and its pause is over."""
        if peer_of(address) in connected:
            self._next.pop(address, None)
            if address not in self._bootstrap:
                self._next[address] = now + LOST_SECONDS, FIRST_SECONDS
            return False
        at, _ = self._next.get(address, (now, 0.0))
        return at <= now

    def _longest(self, address: str) -> float:
        return LONGEST_FOR_BOOTSTRAP if address in self._bootstrap else LONGEST_SECONDS


def peer_of(address: str) -> str:
    """The peer id that a full multiaddress ends in; empty when there is none."""
    return address.rpartition("/p2p/")[2] if "/p2p/" in address else ""
