"""The reward advantage of peers over this node, and what their groups cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from swarm.groups import Mean

KEPT = 0.97  # decay factor per round: half remains after 23 rounds
FORGOTTEN = 0.05  # weight below which a group is dropped, after 99 rounds
DOUBT = 4.0  # pairs of groups in an initial pseudo-observation with an advantage of 0
OTHERS = 1.0 / 3.0  # maximum weight of one voice relative to all others: a quarter of the total
OUTLIER = 0.2  # rewards from the median of voices; a quarter of the weight moves it by 0.05
BEHIND, FAR_BEHIND = -0.05, -0.12  # equal policies are within 0.05, weaker peers 0.12 to 0.2 behind

Level = tuple[str, int]  # env and index of the level
OWN = b""  # key that no author can have: theirs are 32 bytes


@dataclass(frozen=True, slots=True)
class Earned:
    """One group's rewards, one per completion, as verified by this node."""

    author: bytes  # raw key; :data:`OWN` for this node
    env: str
    level: int
    rewards: Sequence[float]

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards)


_Levels = defaultdict[Level, Mean]


class PeerAdvantage:
    """The reward advantage of peers' informative groups on tasks of the same level.

    Let ``n`` and ``m`` be the decayed number and the mean reward of informative groups. On a level,
    a voice ``v`` weighs ``u = n_v n_o / (n_v + n_o)`` against the local groups ``o``: the inverse
    variance of a difference of means. The advantage is the weighted mean of ``m_v - m_o``, shrunk
    towards 0 as if :data:`DOUBT` pairs were seen before. Uninformative groups count on neither
    side, because peers do not share theirs.

    Each proven author is one voice; others have none, because keys are free: groups of rare right
    answers would end sharing with all. Groups of an author count from when it is proven, earlier
    ones included. No voice weighs more than a third of the others, or than :data:`DOUBT` if that is
    more, and none counts as further than :data:`OUTLIER` from their median. So one author moves the
    mean by a quarter of its distance, and by 0.05 if the others agree.
    """

    def __init__(self) -> None:
        # In rewards; None while no level has groups of this node and proven ones.
        self.value: float | None = None
        self._costs = Mean(), Mean()  # seconds, see :attr:`costs`
        self._seen: defaultdict[bytes, _Levels] = defaultdict(lambda: defaultdict(Mean))

    def observe(self, groups: Iterable[Earned], proven: Set[bytes]) -> None:
        """Decay by one round, then add that round's local and admitted groups, each once."""
        self._fade()
        for group in groups:
            if min(group.rewards) < max(group.rewards):
                self._seen[group.author][group.env, group.level].add(Mean(1.0, group.mean))
        self.value = self._measure(proven)

    def observe_costs(self, local: Mean, external: Mean) -> None:
        """Add a round's groups that taught something, and the seconds of all; decay by round."""
        for cost, new in zip(self._costs, (local, external), strict=True):
            if new.groups or new.total:
                cost.fade(KEPT)
                cost.add(new)

    @property
    def costs(self) -> tuple[float | None, float | None]:
        """Seconds per informative local group, and per proven peers' group; None if unknown."""
        local, external = (each.value if each.groups > FORGOTTEN else None for each in self._costs)
        return local, external

    @property
    def worth(self) -> float:
        """From 1 to 0: less if peers are far behind, or their groups cost more than local ones."""
        advantage, (local, external) = self.value or 0.0, self.costs
        gain = min(1.0, max(0.0, (advantage - FAR_BEHIND) / (BEHIND - FAR_BEHIND)))
        return gain * min(1.0, local / external) if local and external else gain

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        rows = [
            [author.hex(), env, level, stats.groups, stats.total]
            for author, levels in self._seen.items()
            for (env, level), stats in levels.items()
        ]
        return {"value": self.value, "seen": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self._seen.clear()
        for author, env, level, count, total in state["seen"]:
            self._seen[bytes.fromhex(author)][env, level] = Mean(count, total)
        self.value = state["value"]

    def _fade(self) -> None:
        for author, levels in list(self._seen.items()):
            for level, stats in list(levels.items()):
                stats.fade(KEPT)
                if stats.groups < FORGOTTEN:
                    del levels[level]
            if not levels:
                del self._seen[author]

    def _measure(self, proven: Set[bytes]) -> float | None:
        local = self._seen.get(OWN) or _Levels(Mean)
        voices = [_weighed(levels, local) for key, levels in self._seen.items() if key in proven]
        total = math.fsum(voice.weight for voice in voices)
        if not total:
            return None
        weights = [
            min(voice.weight, max(DOUBT, OTHERS * (total - voice.weight))) for voice in voices
        ]
        middle = _median(weights, voices)
        near = [min(max(v.advantage, middle - OUTLIER), middle + OUTLIER) for v in voices]
        advantage = math.fsum(w * value for w, value in zip(weights, near, strict=True) if w)
        peer_counts: defaultdict[Level, float] = defaultdict(float)
        for weight, voice in zip(weights, voices, strict=True):
            for level, count in voice.counts.items():
                peer_counts[level] += count * weight / voice.weight
        pairs = math.fsum(
            _pairs(count, local[level].groups) for level, count in peer_counts.items()
        )
        return advantage / math.fsum(weights) * pairs / (pairs + DOUBT)


@dataclass(frozen=True, slots=True)
class _Voice:
    """The advantage of one voice: ``advantage`` over a ``weight`` of pairs of groups."""

    weight: float
    advantage: float
    counts: Mapping[Level, float]


def _median(weights: Sequence[float], voices: Sequence[_Voice]) -> float:
    """Return the weighted median, the higher one if two are in the middle."""
    half = math.fsum(weights) / 2
    for weight, voice in sorted(zip(weights, voices, strict=True), key=lambda x: -x[1].advantage):
        half -= weight
        if half <= 0:
            return voice.advantage
    return voices[-1].advantage


def _weighed(levels: Mapping[Level, Mean], local: Mapping[Level, Mean]) -> _Voice:
    shared = {level: (peer, local[level]) for level, peer in levels.items() if level in local}
    weights = {level: _pairs(peer.groups, own.groups) for level, (peer, own) in shared.items()}
    weight = math.fsum(weights.values())
    total = math.fsum(
        weights[level] * (peer.total / peer.groups - own.total / own.groups)
        for level, (peer, own) in shared.items()
    )
    counts = {level: peer.groups for level, (peer, _) in shared.items()}
    return _Voice(weight, total / weight if weight else 0.0, counts)


def _pairs(peers: float, local: float) -> float:
    """Return the weight of a difference of two means of so many groups."""
    return peers * local / (peers + local)
