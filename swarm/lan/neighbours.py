"""Whom to dial of those who are said to be nearby: a pure state machine on an injected clock."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from swarm.common.backoff import Backoff
from swarm.common.clock import Clock
from swarm.lan.sighting import Sighting

AT_A_TIME = 8
EACH = 2
"""Of one host in a turn, so that a host with a thousand names takes no turn from another."""

ENOUGH = 32
"""Peers found here and connected; the hash table introduces all others."""

FIRST_PAUSE = 30.0
LONGEST_PAUSE = 600.0


class Neighbours:
    """Draws whom to dial, and leaves alone for a while who was dialled in vain.

    Args:
        own: this node's peer id.
    """

    def __init__(self, own: str, clock: Clock, rng: random.Random) -> None:
        self._own = own
        self._rng = rng
        self._failed: Backoff[Sighting] = Backoff(clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._met: set[str] = set()

    def due(
        self, seen: Iterable[Sighting], connected: Collection[str], swarm: str = ""
    ) -> list[Sighting]:
        """Whom to dial now, in an order that nobody who announces names can foresee.

        Args:
            connected: peer ids.
            swarm: id of the one that is looked for, or how it begins.
        """
        self._met &= set(connected)
        if len(self._met) >= ENOUGH:
            return []
        waiting = [
            each
            for each in dict.fromkeys(seen)
            if each.swarm.startswith(swarm)
            and each.peer_id != self._own
            and each.peer_id not in connected
            and not self._failed.waits(each)
        ]
        self._rng.shuffle(waiting)
        return self._fair(waiting)[: min(AT_A_TIME, ENOUGH - len(self._met))]

    def reached(self, sighting: Sighting) -> None:
        """Note that a peer answered."""
        self._failed.succeeded(sighting)
        self._met.add(sighting.peer_id)

    def failed(self, sighting: Sighting) -> None:
        """Note that nobody answered there, or somebody else."""
        self._failed.failed(sighting)

    def _fair(self, waiting: list[Sighting]) -> list[Sighting]:
        """One of each host, then the second ones; no peer twice."""
        turns: list[list[Sighting]] = [[] for _ in range(EACH)]
        taken: dict[str, int] = {}
        peers: set[str] = set()
        for each in waiting:
            turn = taken.get(each.host, 0)
            if turn < EACH and each.peer_id not in peers:
                turns[turn].append(each)
                taken[each.host] = turn + 1
                peers.add(each.peer_id)
        return [each for turn in turns for each in turn]
