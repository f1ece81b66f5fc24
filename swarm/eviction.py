"""Which groups leave a pool that is over its limits.

Newcomers (:mod:`swarm.standing`) may fill what nobody else needs. Over the limits they give first,
until together they hold ``newcomer_share`` of neither limit more; then proven authors give. On
either side the author with the largest share of either limit gives one group at a time, so that
whoever floods the pool pushes out its own groups, and a flood of new keys those of newcomers alone.
With k new keys in a full pool a newcomer keeps about its k-th part of the newcomers' share; proven
authors keep theirs whatever k is, each as much as any other of them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from swarm.pooled_group import GroupKey


class Held(NamedTuple):
    """What eviction looks at; within one author the smallest ``rank`` goes first."""

    key: GroupKey
    informative: int
    received: float
    size: int

    @property
    def rank(self) -> tuple[int, float, GroupKey]:
        return self.informative, self.received, self.key


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a pool holds at most.

    Attributes:
        groups: in number.
        size: bytes as stored.
        newcomer_share: of both, what authors without standing keep where others need the room.
        salt: of this node; between equal authors chance decides, and nobody else can tell how.
    """

    groups: int
    size: int
    newcomer_share: float = 0.25
    salt: bytes = b""


def over_limits(
    held: Iterable[Held], limits: PoolLimits, proven: Set[bytes] = frozenset()
) -> list[GroupKey]:
    """The groups to drop so that the rest keep both limits, as this module explains."""
    ranked = sorted(held, key=lambda h: h.rank, reverse=True)
    newcomers = _Side([h for h in ranked if h.key.author not in proven], limits)
    others = _Side([h for h in ranked if h.key.author in proven], limits)
    dropped = []
    while (
        newcomers.groups + others.groups > limits.groups
        or newcomers.size + others.size > limits.size
    ):
        first = newcomers.groups and newcomers.share > limits.newcomer_share
        dropped.append((newcomers if first or not others.groups else others).give())
    return dropped


class _Side:
    """The groups of newcomers, or of all others.

    Args:
        ranked: the last of an author is the first to go.
    """

    def __init__(self, ranked: Sequence[Held], limits: PoolLimits) -> None:
        self._limits = limits
        self._stacks: defaultdict[bytes, list[Held]] = defaultdict(list)
        for entry in ranked:
            self._stacks[entry.key.author].append(entry)
        self._weight = {a: sum(h.size for h in s) for a, s in self._stacks.items()}
        self.groups = len(ranked)
        self.size = sum(self._weight.values())
        self._heap = [self._place(author) for author in self._stacks]
        heapq.heapify(self._heap)

    @property
    def share(self) -> float:
        """Of the limit that all of them together fill most."""
        return max(self.groups / self._limits.groups, self.size / self._limits.size)

    def give(self) -> GroupKey:
        """Take one group of the author with the largest share."""
        author = self._heap[0][-1]
        stack = self._stacks[author]
        gone = stack.pop()
        self.groups, self.size = self.groups - 1, self.size - gone.size
        self._weight[author] -= gone.size
        if stack:
            heapq.heapreplace(self._heap, self._place(author))
        else:
            heapq.heappop(self._heap)
        return gone.key

    def _place(self, author: bytes) -> tuple[float, bytes, bytes]:
        stack, limits = self._stacks[author], self._limits
        part = max(len(stack) / limits.groups, self._weight[author] / limits.size)
        group = repr(tuple(stack[-1].key)).encode()
        lot = blake2b(group, key=limits.salt, digest_size=8).digest()
        return -part, lot, author
