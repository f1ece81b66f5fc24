"""Whom to dial again, and when: a pure state machine on an injected clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarm.clock import Clock

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0


class Redial:
    """Doubling pauses between the attempts at each address, until its peer is connected.

    Bootstrap addresses are dialled whenever their peer is missing, for it may be all that joins
    two halves of a swarm. Remembered ones are dialled only while nobody at all is connected.
    """

    def __init__(self, bootstrap: Iterable[str], remembered: Iterable[str], clock: Clock) -> None:
        self._bootstrap = tuple(dict.fromkeys(bootstrap))
        self._remembered = tuple(a for a in dict.fromkeys(remembered) if a not in self._bootstrap)
        self._clock = clock
        self._next: dict[str, tuple[float, float]] = {}

    def due(self, connected: Collection[str]) -> tuple[str, ...]:
        """Addresses to dial now, given the peer ids connected; each is thereby taken as tried."""
        candidates = self._bootstrap if connected else self._bootstrap + self._remembered
        now = self._clock.time()
        ready = []
        for address in candidates:
            if peer_of(address) in connected:
                self._next.pop(address, None)
                continue
            at, pause = self._next.get(address, (now, FIRST_SECONDS))
            # No pause is longer; the clock was put back.
            if at <= now or at > now + LONGEST_SECONDS:
                self._next[address] = (now + pause, min(2 * pause, LONGEST_SECONDS))
                ready.append(address)
        return tuple(ready)


def peer_of(address: str) -> str:
    """The peer id that a full multiaddress ends in; empty when there is none."""
    return address.rpartition("/p2p/")[2] if "/p2p/" in address else ""
