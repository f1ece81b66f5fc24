"""Environment turns in worker processes, separate from those that score answers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import Any

from node.tasks.sandbox.sandbox import Grants
from node.tasks.scorer import Answered, Move, Moved, settled
from node.tasks.verifier.dialogue import admit
from node.tasks.verifier.turn_server import MOST_LIVE
from node.tasks.verifier.turn_worker import MOST_LOSSES, PendingTurn, TurnWorker
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess, Workers
from node.threads import LoopThread
from protocol.manifest import ENVIRONMENT
from swarm.common.child_process import ChannelError
from swarm.groups import TaskRef
from swarm.verification import CRASHED, NOT_REPLAYED, UNAVAILABLE, UNKNOWN_ENV, JudgeRefused

logger = logging.getLogger(__name__)

MOST_WORKERS = 2
_LOOK_SECONDS = 0.1  # Interval of checks for hanging workers while anything is pending.


class WorkerPair:
    """Up to two workers that take turns; belongs to the thread of an event loop."""

    def __init__(self, workers: Workers, start: Callable[[], WorkerProcess]) -> None:
        self._all = workers
        self._start = start
        self._wall_seconds = workers.limits.wall_seconds
        self._queue: deque[PendingTurn] = deque()
        self._workers: list[TurnWorker] = []
        # Last worker of each trajectory in play.
        self._homes: OrderedDict[int, tuple[TaskRef, TurnWorker]] = OrderedDict()
        self._starting: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._next_start = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, turns: Sequence[PendingTurn]) -> None:
        self._queue.extend(turn for turn in turns if not self._given_up(turn))
        self._spread()

    async def close(self) -> None:
        """End the workers and refuse all pending turns."""
        self._closed = True
        waiting = [*self._queue]
        for worker in self._workers:
            waiting += worker.turns.values()
            worker.leave()
            self._leave(asyncio.to_thread(worker.process.end))
        self._queue.clear()
        self._workers.clear()
        for turn in waiting:
            turn.settle(JudgeRefused(UNAVAILABLE, "the verifier is closed"))
        if self._starting:
            await asyncio.wait([self._starting])
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _spread(self) -> None:
        left: list[PendingTurn] = []
        while self._queue and any(worker.open for worker in self._workers):
            turn = self._queue.popleft()
            if worker := self._place(turn):
                self._hand(turn, worker)
            else:
                left.append(turn)
        self._queue.extendleft(reversed(left))
        if self._needs_another():
            self._starting = asyncio.create_task(self._add())
        if self._look is None and (self._queue or any(w.turns or w.stuck for w in self._workers)):
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_around)

    def _place(self, turn: PendingTurn) -> TurnWorker | None:
        home = self._home(turn)
        if home and (self._bound(turn) or not home.stuck):
            return home if home.open else None
        able = [worker for worker in self._workers if worker.open]
        return min(able, key=lambda worker: len(worker.turns), default=None)

    def _hand(self, turn: PendingTurn, worker: TurnWorker) -> None:
        try:
            admit(worker.process, self._all.specs, turn.move.task)
            worker.take(turn)
        except JudgeRefused as refused:
            turn.settle(refused)
        except ValueError as error:
            turn.settle(JudgeRefused(CRASHED, str(error), 0.0))

    def _last_home(self, move: Move) -> TurnWorker | None:
        task, worker = self._homes.get(move.key, (None, None))
        return worker if task == move.task else None

    def _home(self, turn: PendingTurn) -> TurnWorker | None:
        home = self._last_home(turn.move)
        return home if home in self._workers else None

    def _bound(self, turn: PendingTurn) -> bool:
        """Return whether a turn can continue only where its episode is."""
        begun = turn.begun is not None or self._last_home(turn.move) is not None
        return begun and turn.move.task.env in self._all.unrepeatable

    def _given_up(self, turn: PendingTurn) -> bool:
        """Refuse a turn whose episode is lost and not replayable; return whether so."""
        lost = self._bound(turn) and self._home(turn) is None
        if lost:
            why = "its episode is lost, and it cannot be played again"
            turn.settle(JudgeRefused(NOT_REPLAYED, why, 0.0))
        return lost

    def _movable(self, worker: TurnWorker) -> list[int]:
        turns = worker.turns.items()
        return [n for n, turn in turns if turn is not worker.at and not self._bound(turn)]

    def _look_around(self) -> None:
        self._look = None
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.overdue(now):
                self._lose(worker, worker.late(), TimeoutError())
            elif worker.silent(now):
                worker.stuck = True
        if any(worker.open for worker in self._workers):
            for worker in self._workers:
                if worker.stuck and (movable := self._movable(worker)):
                    self._queue.extendleft(reversed(worker.drop(movable)))
        self._spread()

    def _needs_another(self) -> bool:
        now = time.monotonic()
        if self._closed or self._starting:
            return False
        if len(self._workers) + len(self._leaving) >= MOST_WORKERS:
            return False
        if not all(worker.stuck or worker.full(now) for worker in self._workers):
            return False
        if self._workers and now < self._next_start:
            return False
        movable = any(self._movable(worker) for worker in self._workers if worker.stuck)
        return movable or any(not self._bound(turn) for turn in self._queue)

    async def _add(self) -> None:
        """Start a worker; if that fails and there is no other, refuse the queue."""
        try:
            process = await asyncio.to_thread(self._start)
            seconds = self._wall_seconds
            worker = TurnWorker(process, seconds, self._answered, self._spread, self._ended)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: worker, sock=process.detach())
        except Exception as error:  # noqa: BLE001 - the waiting turns are refused
            self._starting = None
            logger.error("no worker can be started for turns: %s", error)
            if self._workers:
                self._next_start = time.monotonic() + self._wall_seconds
                return
            why = (
                error if isinstance(error, JudgeRefused) else JudgeRefused(UNAVAILABLE, str(error))
            )
            while self._queue:
                self._queue.popleft().settle(why)
            return
        self._starting = None
        if self._closed:
            worker.leave()
            self._leave(asyncio.to_thread(worker.process.end))
            return
        self._workers.append(worker)
        if not worker.connected:
            self._ended(worker, None)
        self._spread()

    def _answered(self, worker: TurnWorker, turn: PendingTurn, moved: Moved) -> None:
        self._homes.pop(turn.move.key, None)
        if isinstance(moved, Answered) and moved.reward is None:
            self._homes[turn.move.key] = (turn.move.task, worker)
        while len(self._homes) > MOST_LIVE * MOST_WORKERS:
            self._homes.popitem(last=False)
        turn.settle(moved)

    def _ended(self, worker: TurnWorker, death: WorkerDied | None) -> None:
        if worker in self._workers:
            self._lose(worker, worker.at, death or ChannelError("end of file"))

    def _lose(
        self, worker: TurnWorker, culprit: PendingTurn | None, error: OSError | WorkerDied
    ) -> None:
        """Drop a worker and its culprit turn; the other turns continue elsewhere."""
        self._workers.remove(worker)
        worker.leave()
        turns = list(worker.turns.values())
        if not culprit:
            for turn in turns:
                turn.losses += 1
        blamed = [t for t in turns if t is culprit or t.losses == MOST_LOSSES]
        self._queue.extendleft(turn for turn in reversed(turns) if turn not in blamed)
        self._queue = deque(turn for turn in self._queue if not self._given_up(turn))
        self._leave(self._buried(worker.process, error, blamed))
        self._spread()

    def _leave(self, end: Coroutine[Any, Any, None]) -> None:
        leaving = asyncio.create_task(end)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _buried(
        self, process: WorkerProcess, error: OSError | WorkerDied, blamed: Sequence[PendingTurn]
    ) -> None:
        now = time.monotonic()
        death = await asyncio.to_thread(process.death, error, self._wall_seconds)
        first = blamed[0] if blamed else None
        env = first.move.task.env if first else None
        begun = first.begun if first and first.begun is not None else now
        refused = self._all.loss(env, death, now - begun)
        for turn in blamed:
            turn.settle(refused)


class TurnWorkers:
    """Turn workers per set of grants. Thread-safe; the first turn starts one."""

    def __init__(self, workers: Workers) -> None:
        self._all = workers
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._pairs: dict[Grants, WorkerPair] = {}
        self._closed = False

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        turns: list[PendingTurn] = []
        outcomes: list[Future[Moved]] = []
        for move in moves:
            if refused := self._refused(move.task.env):
                outcomes.append(settled(refused))
            else:
                turns.append(PendingTurn(move))
                outcomes.append(turns[-1].outcome)
        with self._lock:
            if turns and not self._closed:
                self._thread = self._thread or LoopThread("turns")
                self._thread.soon(partial(self._take, turns))
                return outcomes
        for turn in turns:
            turn.settle(JudgeRefused(UNAVAILABLE, "the verifier is closed"))
        return outcomes

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread:
            thread.call(self._close_all())
            thread.close()

    def _refused(self, env: str) -> JudgeRefused | None:
        spec = self._all.specs.get(env)
        if spec and spec.source == ENVIRONMENT:
            return None
        why = f"env {env!r} is answered in one turn" if spec else f"{env!r} is not served here"
        return JudgeRefused(UNKNOWN_ENV, why, 0.0)

    def _take(self, turns: Sequence[PendingTurn]) -> None:
        for grants, alike in groupby(turns, lambda turn: self._all.granted(turn.move.task.env)):
            if grants not in self._pairs:
                start = partial(self._all.start, grants, turns=True)
                self._pairs[grants] = WorkerPair(self._all, start)
            self._pairs[grants].take(list(alike))

    async def _close_all(self) -> None:
        for pair in self._pairs.values():
            await pair.close()
