"""How much time judging strangers' texts may take, and whose turn it is.

Let T be half an epoch. At the default shares of a quarter

- a frame gets T / 8 (3.75 s of an epoch of a minute), and so does any single request;
- an author gets T / 4 an epoch, over all its frames;
- all newcomers together get T / 4 an epoch, however many keys they are, and the one that has cost
  least comes first.

All proven authors together have no bound but their number: eight that are slow to judge take all of
an epoch.

Proven authors (:mod:`swarm.standing`) go before newcomers, and of two the one whose verdicts took
less time this epoch. A frame gives way after every request: one group, or as many as the judge gets
done in a moment (:meth:`swarm.judge.Judge.judge_some`). So a proven author that costs little waits
for one request at most. Time counts against its author however a verdict ends.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

USED = 0.5
"""Share of an epoch that T is."""
FRAME_PARTS = 8
"""A frame's bound is T by this."""
LEAST_SECONDS = 0.5
"""What must be left for a request to begin: an honest one takes far less, and none is cut short
without need."""
AUTHOR_SHARE = 0.25
NEWCOMER_SHARE = 0.25


_Waiter = tuple[int, bytes, bool, asyncio.Future[None]]


class VerificationBudget:
    """Seconds of verification by author in the running epoch; a pure state machine.

    Args:
        epoch_seconds: length of an epoch.
    """

    def __init__(self, epoch_seconds: float) -> None:
        self._whole = USED * epoch_seconds
        self._epoch = -1
        self._spent: defaultdict[bytes, float] = defaultdict(float)
        self._newcomers = 0.0

    @property
    def frame_seconds(self) -> float:
        """Most that one frame, or one request, may take."""
        return max(2 * LEAST_SECONDS, self._whole / FRAME_PARTS)

    def left(self, author: bytes, frame: float, *, proven: bool) -> float:
        """Seconds that the next request of ``author`` may take; 0 where it may not begin.

        Args:
            frame: seconds that its frame has taken.
            proven: whether the author has standing.
        """
        left = min(
            self.frame_seconds - frame,
            max(2 * LEAST_SECONDS, AUTHOR_SHARE * self._whole) - self.spent(author),
        )
        if not proven:
            most = max(2 * LEAST_SECONDS, NEWCOMER_SHARE * self._whole)
            left = min(left, most - self._newcomers)
        return left if left >= LEAST_SECONDS else 0.0

    def spent(self, author: bytes) -> float:
        """Seconds charged to the author in this epoch."""
        return self._spent.get(author, 0.0)

    def charge(self, author: bytes, seconds: float, *, proven: bool) -> None:
        """Note what a verdict took, whatever came of it."""
        self._spent[author] += seconds
        if not proven:
            self._newcomers += seconds

    def begin(self, epoch: int) -> None:
        """Start anew where ``epoch`` is another than before."""
        if epoch != self._epoch:
            self._epoch, self._newcomers = epoch, 0.0
            self._spent.clear()


class Turns:
    """One request at a time; who waits is served by standing and by what they have cost."""

    def __init__(self, budget: VerificationBudget) -> None:
        self._budget = budget
        self._order = count()
        self._waiting: list[_Waiter] = []
        self._busy = False

    @asynccontextmanager
    async def turn(self, author: bytes, *, proven: bool) -> AsyncIterator[None]:
        """Hold the judge for one request of ``author``."""
        if self._busy or self._waiting:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (next(self._order), author, proven, mine)
            self._waiting.append(entry)
            try:
                await mine
            except asyncio.CancelledError:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                else:
                    self._release()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        """Hand the judge on in a moment: who had it may want it again for the same frame."""
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            entry = min(self._waiting, key=self._rank)
            self._waiting.remove(entry)
            entry[-1].set_result(None)

    def _rank(self, entry: _Waiter) -> tuple[bool, float, int]:
        order, author, proven, _ = entry
        return not proven, self._budget.spent(author), order
