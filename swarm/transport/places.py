"""Who may hold one of a service's places, and who gives way: pure, on an injected clock.

A place is held from the first byte of a request to the last of its answer. While a peer lets this
node wait, for its request or for taking its answer, its place can go to somebody who holds fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.common.clock import Clock
from swarm.common.fair_limits import KEPT, Standings

YOUNG_SECONDS = 0.25
"""A request waited for less than this gives way only to peers with two places fewer."""

TAKING_SECONDS = 2.0
CONTESTED_RATE = 65_536.0
"""Bytes a second at which an answer must be taken to be safe while others wait for the place."""


@dataclass(eq=False, slots=True)
class Place:
    """One request under way.

    Attributes:
        waiting: the peer is due, with its request or with taking the answer.
        since: unix time at which the waiting began, seconds.
        safe_until: unix time up to which it gives way to nobody of almost as many places.
        lost: it was given to somebody else.
        give_way: called when it is; set by whoever awaits the peer.
    """

    peer: str
    known: bool
    since: float
    safe_until: float
    waiting: bool = True
    firm: bool = False
    lost: bool = False
    give_way: Callable[[], None] = field(default=lambda: None)


class Places:
    """A service's places, some for each peer and a quarter of all for known peers only.

    When no place is left for a newcomer, the one waited for longest of the peer that holds most
    gives way, strangers before known peers; a place that nobody waits for never does.
    """

    def __init__(self, total: int, each: int, clock: Clock, standings: Standings) -> None:
        self._total = total
        self._each = each
        self._clock = clock
        self._standings = standings
        self._places: dict[Place, None] = {}
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def held_by(self, peer: str) -> int:
        """Places of one peer."""
        return self._held[peer]

    def take(self, peer: str) -> Place | None:
        """A place for a request of ``peer`` that is to come; None: there is none."""
        if self._held[peer] >= self._each:
            return None
        known, now = self._standings.knows(peer), self._clock.time()
        if not self._room(known):
            victim = self._victim(peer, known, now)
            if victim is None:
                return None
            victim.lost = True
            self.release(victim)
            victim.give_way()
        place = Place(peer, known, now, now + YOUNG_SECONDS)
        self._places[place] = None
        self._held[peer] += 1
        return place

    def work(self, place: Place) -> None:
        """The request is complete: its answer is up to this node."""
        place.waiting = False

    def hand_over(self, place: Place, size: int) -> None:
        """An answer of ``size`` bytes is ready: it is up to the peer again."""
        place.waiting = place.firm = True
        place.since = self._clock.time()
        place.safe_until = place.since + TAKING_SECONDS + size / CONTESTED_RATE

    def release(self, place: Place) -> None:
        """The place is free again; nothing happens when it was lost."""
        if place in self._places:
            del self._places[place]
            self._held[place.peer] -= 1
            if not self._held[place.peer]:
                del self._held[place.peer]

    def _room(self, known: bool) -> bool:
        if len(self._places) >= self._total:
            return False
        strangers = sum(not place.known for place in self._places)
        return known or strangers < self._total - int(self._total * KEPT)

    def _victim(self, peer: str, known: bool, now: float) -> Place | None:
        mine = self._held[peer]

        def gives_way(place: Place) -> bool:
            if not place.waiting or place.peer == peer or (place.known and not known):
                return False
            if place.safe_until > now and place.firm:
                return False
            if known and not place.known:
                return True
            return self._held[place.peer] > mine + (place.safe_until > now)

        candidates = [place for place in self._places if gives_way(place)]
        return max(
            candidates,
            key=lambda place: (not place.known, self._held[place.peer], -place.since),
            default=None,
        )
