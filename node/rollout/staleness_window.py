"""Which own groups may be begun, and which of them make up the next update.

The rule is AReaL's (arXiv 2505.24298, its staleness-aware training): with ``v`` updates done, at
most ``(max_staleness + v + 1) * size`` groups are ever begun, so that what an update leaves behind
fits into the ``max_staleness`` updates after it. Its counts alone bound the age of what is taken in
order. Taking whatever is complete needs one thing more, that of scheduling by deadlines: an update
waits until, of what it leaves, the groups of each age fit into the updates that are left to them.
So nothing that was begun is thrown away for its age, however long it takes.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice


@dataclass(slots=True)
class _Slot:
    """One group; ``version`` counts the updates done when it was begun."""

    version: int
    settled: bool = False


class StalenessWindow:
    """A pure state machine over the numbers of groups: neither clock nor threads.

    Groups go by tickets, which rise. A group is running until it is settled: complete and scored,
    or lost. A lost group keeps its place in an update, so that tasks that cannot be used slow the
    node down instead of being drawn without end.

    Args:
        max_staleness: most updates between the begin of a group and the update that takes it; 0
            begins and takes each update's groups in turn.
        over_provision: at most ``1 + over_provision`` times an update's groups run at a time; 0
            lets as many run as their age allows.
        version: updates done before.
    """

    def __init__(
        self, max_staleness: int, *, over_provision: float = 0.0, version: int = 0
    ) -> None:
        self._max_staleness = max_staleness
        self._over_provision = over_provision
        self._sizes: deque[int] = deque()
        self._slots: dict[int, _Slot] = {}
        self._next = 0
        self.version = version

    def plan(self, size: int) -> None:
        """Plan the last update of the window, and any before it that have no size yet."""
        while len(self._sizes) <= self._max_staleness:
            self._sizes.append(size)

    @property
    def size(self) -> int:
        """Groups that the next update takes."""
        return self._sizes[0]

    @property
    def capacity(self) -> int:
        """Groups that may be begun now."""
        free = sum(self._sizes) - len(self._slots)
        if self._over_provision and self._sizes:
            most = math.ceil((1 + self._over_provision) * self.size)
            free = min(free, most - len(self.running))
        return max(0, free)

    @property
    def complete(self) -> bool:
        """Whether the next update can take its groups."""
        next_ones = set(self._oldest_settled())
        if len(next_ones) < self.size:
            return False
        left = [slot for ticket, slot in self._slots.items() if ticket not in next_ones]
        later = islice(self._sizes, 1, None)
        room = 0
        for version, size in enumerate(later, self.version - self._max_staleness):
            due = [slot for slot in left if slot.version <= version]
            # More than fit and all of them settled, as after a restart: there is no use in waiting.
            if len(due) > room and not all(slot.settled for slot in due):
                return False
            room += size
        return True

    @property
    def running(self) -> list[int]:
        """Groups that are not settled, the oldest first."""
        return [ticket for ticket, slot in self._slots.items() if not slot.settled]

    def begin(self) -> int:
        """The ticket of a new group."""
        ticket = self._next
        self.resume(ticket, self.version)
        return ticket

    def resume(self, ticket: int, version: int) -> None:
        """Go on with a group of an earlier run, begun at ``version``; the oldest ones first."""
        self._slots[ticket] = _Slot(version)
        self._next = ticket + 1

    def settle(self, ticket: int) -> None:
        """The group is complete and scored, or lost."""
        self._slots[ticket].settled = True

    def take(self) -> list[int]:
        """The groups of the next update, the oldest settled ones; the update counts as done."""
        taken = self._oldest_settled()
        self._sizes.popleft()
        for ticket in taken:
            del self._slots[ticket]
        self.version += 1
        return taken

    def expire(self) -> list[int]:
        """Let go of groups that are too old for the next update.

        There are none but after a restart with fewer groups an update or a tighter bound.
        """
        oldest = self.version - self._max_staleness
        stale = [ticket for ticket, slot in self._slots.items() if slot.version < oldest]
        for ticket in stale:
            del self._slots[ticket]
        return stale

    def _oldest_settled(self) -> list[int]:
        settled = [ticket for ticket, slot in self._slots.items() if slot.settled]
        return settled[: self.size]
