"""How far peers are ahead of a node on what they share, and what that is worth to it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

KEPT = 0.97
"""Of what was seen, each round; half of it after 23 rounds."""
FORGOTTEN = 0.05
"""Weight below which a group is not remembered any more, after 99 rounds."""
DOUBT = 4.0
"""Pairs of groups for which a lead of nothing is taken to have been seen before the first one."""
OTHERS = 1.0 / 3.0
"""Most that one voice counts, of what all others do: a quarter of the whole."""
BEHIND, FAR_BEHIND = -0.05, -0.12
"""Equal policies are within 0.05 of each other but for noise; in experiments a node among weaker
ones finds their groups 0.12 to 0.2 behind."""

Level = tuple[str, int]
"""Env and index of the level."""
OWN, NEWCOMERS = b"", b"newcomers"
"""Who no author can be: their keys are 32 bytes."""


@dataclass(frozen=True, slots=True)
class Earned:
    """What the completions of one group earned.

    Attributes:
        author: raw key; :data:`OWN` for this node.
        env, level: of its task.
        rewards: this node's own verdict, one a completion.
    """

    author: bytes
    env: str
    level: int
    rewards: Sequence[float]

    @property
    def mean(self) -> float:
        """Reward of the group."""
        return math.fsum(self.rewards) / len(self.rewards)


@dataclass(slots=True)
class _Seen:
    """Groups and the sum of their rewards, both decayed."""

    count: float = 0.0
    total: float = 0.0

    def add(self, other: _Seen) -> None:
        self.count += other.count
        self.total += other.total


_Levels = defaultdict[Level, _Seen]


class PeersLead:
    """What informative groups of peers earn more than this node's own on tasks of the same level.

    With ``n`` and ``m`` the decayed number and the mean reward of groups with an advantage, a voice
    ``v`` that shared some of level ``l`` weighs ``u = n_v n_o / (n_v + n_o)`` there beside the own
    ones ``o``, the inverse variance of a difference of means. The lead is the weighted mean of
    ``m_v - m_o``, drawn towards 0 as if :data:`DOUBT` had been seen before. Groups without
    advantage count on neither side: peers do not share theirs.

    Every author is a voice of its own once its groups have proved useful here; all others together
    are one. None weighs more than a third of the rest, or than :data:`DOUBT` where there is little
    else, so whoever floods, and however many keys they have, moves the mean by a quarter of how far
    they are from it.

    Attributes:
        value: the lead, in rewards; None where nothing was seen on both sides of any level.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._seen: defaultdict[bytes, _Levels] = defaultdict(lambda: defaultdict(_Seen))

    def observe(self, groups: Iterable[Earned], proven: Set[bytes]) -> None:
        """Let a round pass, and take in the groups that came in it.

        Args:
            groups: own ones, and those of others that were admitted; each is told once. Those
                whose rewards are all alike are left out of account.
            proven: authors with standing.
        """
        self._fade()
        for group in groups:
            if min(group.rewards) < max(group.rewards):
                self._seen[group.author][group.env, group.level].add(_Seen(1.0, group.mean))
        self.value = self._measure(proven)

    @property
    def worth(self) -> float:
        """From 1, where peers are no worse, down to 0, where they are far behind."""
        lead = self.value or 0.0
        return min(1.0, max(0.0, (lead - FAR_BEHIND) / (BEHIND - FAR_BEHIND)))

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        seen = [
            [author.hex(), env, level, each.count, each.total]
            for author, levels in self._seen.items()
            for (env, level), each in levels.items()
        ]
        return {"value": self.value, "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._seen.clear()
        for author, env, level, count, total in state["seen"]:
            self._seen[bytes.fromhex(author)][env, level] = _Seen(count, total)
        self.value = state["value"]

    def _fade(self) -> None:
        for author, levels in list(self._seen.items()):
            for level, seen in list(levels.items()):
                seen.count *= KEPT
                seen.total *= KEPT
                if seen.count < FORGOTTEN:
                    del levels[level]
            if not levels:
                del self._seen[author]

    def _measure(self, proven: Set[bytes]) -> float | None:
        own = self._seen.get(OWN) or _Levels(_Seen)
        voices = [_weighed(levels, own) for levels in self._voices(proven).values()]
        total = math.fsum(voice.weight for voice in voices)
        if not total:
            return None
        weights = [
            min(voice.weight, max(DOUBT, OTHERS * (total - voice.weight))) for voice in voices
        ]
        lead = math.fsum(w * v.lead for w, v in zip(weights, voices, strict=True) if w)
        heard: defaultdict[Level, float] = defaultdict(float)
        for weight, voice in zip(weights, voices, strict=True):
            for level, count in voice.counts.items():
                heard[level] += count * weight / voice.weight
        pairs = math.fsum(_pairs(count, own[level].count) for level, count in heard.items())
        return lead / math.fsum(weights) * pairs / (pairs + DOUBT)

    def _voices(self, proven: Set[bytes]) -> dict[bytes, _Levels]:
        voices: dict[bytes, _Levels] = {}
        for author, levels in self._seen.items():
            if author == OWN:
                continue
            if author in proven:
                voices[author] = levels
                continue
            together = voices.setdefault(NEWCOMERS, defaultdict(_Seen))
            for level, seen in levels.items():
                together[level].add(seen)
        return voices


@dataclass(frozen=True, slots=True)
class _Voice:
    """What one of those who share has to say.

    Attributes:
        weight: pairs of groups that its lead is measured on.
        lead: mean over them.
        counts: groups by level, where this node has some too.
    """

    weight: float
    lead: float
    counts: Mapping[Level, float]


def _weighed(levels: Mapping[Level, _Seen], own: Mapping[Level, _Seen]) -> _Voice:
    both = {level: (seen, own[level]) for level, seen in levels.items() if level in own}
    weights = {level: _pairs(seen.count, mine.count) for level, (seen, mine) in both.items()}
    weight = math.fsum(weights.values())
    ahead = math.fsum(
        weights[level] * (seen.total / seen.count - mine.total / mine.count)
        for level, (seen, mine) in both.items()
    )
    counts = {level: seen.count for level, (seen, _) in both.items()}
    return _Voice(weight, ahead / weight if weight else 0.0, counts)


def _pairs(peers: float, own: float) -> float:
    """What a difference of two means of so many groups weighs."""
    return peers * own / (peers + own)
