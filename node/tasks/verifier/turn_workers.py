"""Environment turns in worker processes, separate from those that score answers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from node.tasks.sandbox.sandbox import Grants
from node.tasks.scorer import Answered, Move, Moved
from node.tasks.verifier.replies import PendingTurn, admit, decoded, nonsense
from node.tasks.verifier.worker import MOST_LIVE
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess, Workers
from node.threads import LoopThread
from protocol.manifest import ENVIRONMENT
from swarm.common.child_process import ChannelError, Unread, packed
from swarm.groups import TaskRef
from swarm.verification import CRASHED, NOT_REPLAYED, UNAVAILABLE, UNKNOWN_ENV, VerifierError

logger = logging.getLogger(__name__)

MOST_LOSSES = 3  # Lost workers without a known culprit, after which a turn is blamed.
MOST_WORKERS = 2
_CHECK_SECONDS = 0.1  # Interval of checks for hanging workers while anything is pending.


STUCK_SECONDS = 1.0  # A worker that owes a reply and is silent for this long is stuck.
MOST_TURNS = 256  # Per worker at a time.


@dataclass(eq=False)
class TurnWorker(asyncio.Protocol):
    """Connection to one worker; belongs to the thread of its event loop.

    ``answered`` is called for each answered turn, ``processed`` when all received messages are
    handled, ``ended`` when the worker is unusable, with None if it ended by itself. ``turns`` are
    the pending turns by the worker's numbers, oldest first. ``stuck``: the worker delays its turns;
    reset when it sends a message.
    """

    process: WorkerProcess
    wall_seconds: float
    answered: Callable[[TurnWorker, PendingTurn, Moved], None]
    processed: Callable[[], None]
    ended: Callable[[TurnWorker, WorkerDied | None], None]

    def __post_init__(self) -> None:
        self.turns: dict[int, PendingTurn] = {}
        self.stuck = False
        self._unread = Unread()
        self._count = 0
        self._current_number: int | None = None
        self._current_since = self._last_message = self._last_progress = time.monotonic()
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def open(self) -> bool:
        return not self.stuck and len(self.turns) < MOST_TURNS

    @property
    def current(self) -> PendingTurn | None:
        """The turn that it runs; None if there is none or it was withdrawn."""
        return None if self._current_number is None else self.turns.get(self._current_number)

    def send(self, turn: PendingTurn) -> None:
        """Send it a turn; raise ``ValueError`` if the turn cannot be encoded."""
        message = turn.message(self._count, self.wall_seconds)
        now = time.monotonic()
        if not self._reply_due:
            self._last_message = now
        if not self.turns:
            self._last_progress = now
        turn.begun = None
        self.turns[self._count] = turn
        self._count += 1
        self._write(message)

    def withdraw(self, numbers: Sequence[int]) -> list[PendingTurn]:
        """Withdraw turns; later messages about them are ignored."""
        self._write(packed({"drop": list(numbers)}))
        return [self.turns.pop(number) for number in numbers]

    def silent(self, now: float) -> bool:
        """Return whether it owes a message and has been silent for a while."""
        return self._reply_due and now - self._last_message > STUCK_SECONDS

    def full(self, now: float) -> bool:
        """Return whether it has the maximum of turns and made no recent progress."""
        return len(self.turns) >= MOST_TURNS and now - self._last_progress > STUCK_SECONDS

    def overdue(self, now: float) -> bool:
        """Return whether a turn exceeded its time, with a grace period for waiting turns."""
        running = self._current_number is not None
        if running and now - self._current_since > self.wall_seconds:
            return True
        limit = (1 + running) * self.wall_seconds + STUCK_SECONDS
        oldest = min((t.begun for t in self.turns.values() if t.begun is not None), default=now)
        pending = bool(self.turns) or self.stuck
        return now - oldest > limit or (pending and now - self._last_progress > limit)

    def culprit(self) -> PendingTurn | None:
        """Return the turn to blame for an overdue worker, if any."""
        if self._current_number is not None:
            return self.current
        started = [turn for turn in self.turns.values() if turn.begun is not None]
        first = next(iter(self.turns.values()), None)
        return min(started, key=lambda turn: turn.begun or 0.0, default=first)

    def disconnect(self) -> None:
        """Close the channel; later messages are ignored."""
        transport, self._transport = self._transport, None
        if transport:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread.add(data)
        try:
            while self._transport and not self._unread.missing():
                self._handle(self._unread.take_map())
        except ChannelError as error:
            self.ended(self, nonsense(f"message is malformed: {error}"))
        except WorkerDied as death:
            self.ended(self, death)
        else:
            self.processed()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport:
            self._transport = None
            self.ended(self, None)

    @property
    def _reply_due(self) -> bool:
        """Whether a message is due soon: it runs a turn or has one to begin."""
        return self._current_number is not None or any(
            turn.begun is None for turn in self.turns.values()
        )

    def _write(self, message: bytes) -> None:
        if self._transport:
            self._transport.write(message)

    def _handle(self, message: dict[str, Any]) -> None:
        self._last_message, self.stuck = time.monotonic(), False
        if "turn" in message:
            self._take_answer(self._known(message["turn"]), message)
        else:
            number = message.get("at")
            self._current_number = None if number is None else self._known(number)
            self._current_since = self._last_message
            if (turn := self.current) and turn.begun is None:
                turn.begun = self._last_progress = self._last_message

    def _known(self, number: object) -> int:
        if not isinstance(number, int) or not 0 <= number < self._count:
            raise nonsense("answer is to a turn that was not requested")
        return number

    def _take_answer(self, number: int, message: dict[str, Any]) -> None:
        # A malformed reply is its own turn's fault.
        self._current_number = number
        if turn := self.turns.get(number):
            response = decoded(message, self._last_message - (turn.begun or self._last_message))
            del self.turns[number]
            self._last_progress = self._last_message
            self.answered(self, turn, response)
        self._current_number = None


class WorkerPair:
    """Up to two workers that take turns; belongs to the thread of an event loop.

    A turn goes to the last worker of its trajectory, which has the episode. If that one is stuck, a
    second worker starts and gets the turns that can be replayed. If it is overdue, it is ended: the
    turn that it ran is blamed, and the others are queued again.
    """

    def __init__(self, workers: Workers, start: Callable[[], WorkerProcess]) -> None:
        self._common = workers
        self._start = start
        self._wall_seconds = workers.limits.wall_seconds
        self._queue: deque[PendingTurn] = deque()
        self._workers: list[TurnWorker] = []
        self._episodes: OrderedDict[int, tuple[TaskRef, TurnWorker]] = OrderedDict()
        self._starting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._next_start = 0.0
        self._next_check: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, turns: Sequence[PendingTurn]) -> None:
        self._queue.extend(turn for turn in turns if not self._refuse_if_lost(turn))
        self._assign()

    async def close(self) -> None:
        """End the workers and refuse all pending turns."""
        self._closed = True
        turns = [*self._queue]
        for worker in self._workers:
            turns += worker.turns.values()
            worker.disconnect()
            self._run_end(asyncio.to_thread(worker.process.end))
        self._queue.clear()
        self._workers.clear()
        for turn in turns:
            turn.settle(VerifierError(UNAVAILABLE, "the verifier is closed"))
        if self._starting:
            await asyncio.wait([self._starting])
        if self._ending:
            await asyncio.wait(self._ending)

    def _assign(self) -> None:
        deferred: list[PendingTurn] = []
        while self._queue and any(worker.open for worker in self._workers):
            turn = self._queue.popleft()
            if (worker := self._worker_for(turn)) is None:
                deferred.append(turn)
                continue
            try:
                admit(worker.process, self._common.specs, turn.move.task)
                worker.send(turn)
            except VerifierError as refusal:
                turn.settle(refusal)
            except ValueError as error:
                turn.settle(VerifierError(CRASHED, str(error), 0.0))
        self._queue.extendleft(reversed(deferred))
        if self._needs_another():
            self._starting = asyncio.create_task(self._start_worker())
        pending = self._queue or any(worker.turns or worker.stuck for worker in self._workers)
        if pending and self._next_check is None:
            loop = asyncio.get_running_loop()
            self._next_check = loop.call_later(_CHECK_SECONDS, self._check_workers)

    def _worker_for(self, turn: PendingTurn) -> TurnWorker | None:
        last = self._last_worker(turn)
        if last and last in self._workers and (self._needs_episode(turn) or not last.stuck):
            return last if last.open else None
        candidates = [worker for worker in self._workers if worker.open]
        return min(candidates, key=lambda worker: len(worker.turns), default=None)

    def _last_worker(self, turn: PendingTurn) -> TurnWorker | None:
        """Return the last worker of a turn's trajectory, which may have ended."""
        task, worker = self._episodes.get(turn.move.key, (None, None))
        return worker if task == turn.move.task else None

    def _needs_episode(self, turn: PendingTurn) -> bool:
        """Return whether a turn can continue only where its episode is."""
        started = turn.begun is not None or self._last_worker(turn) is not None
        env = self._common.opened_envs.get(turn.move.task.env)
        return started and env is not None and not env.replayable

    def _refuse_if_lost(self, turn: PendingTurn) -> bool:
        """Refuse a turn whose episode is lost and not replayable; return whether so."""
        lost = self._needs_episode(turn) and self._last_worker(turn) not in self._workers
        if lost:
            detail = "its episode is lost, and it cannot be played again"
            turn.settle(VerifierError(NOT_REPLAYED, detail, 0.0))
        return lost

    def _movable(self, worker: TurnWorker) -> list[int]:
        """Return the numbers of a worker's turns that another one can take over."""
        numbers = [n for n, turn in worker.turns.items() if turn is not worker.current]
        return [n for n in numbers if not self._needs_episode(worker.turns[n])]

    def _check_workers(self) -> None:
        self._next_check = None
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.overdue(now):
                self._lose(worker, worker.culprit(), TimeoutError())
            elif worker.silent(now):
                worker.stuck = True
        if any(worker.open for worker in self._workers):
            for worker in self._workers:
                if worker.stuck and (movable := self._movable(worker)):
                    self._queue.extendleft(reversed(worker.withdraw(movable)))
        self._assign()

    def _needs_another(self) -> bool:
        now = time.monotonic()
        if self._closed or self._starting or len(self._workers) + len(self._ending) >= MOST_WORKERS:
            return False
        if not all(worker.stuck or worker.full(now) for worker in self._workers):
            return False
        if self._workers and now < self._next_start:
            return False
        movable = any(self._movable(worker) for worker in self._workers if worker.stuck)
        return movable or any(not self._needs_episode(turn) for turn in self._queue)

    async def _start_worker(self) -> None:
        """Start a worker; if that fails and there is no other, refuse the queue."""
        try:
            process = await asyncio.to_thread(self._start)
            seconds = self._wall_seconds
            worker = TurnWorker(process, seconds, self._answered, self._assign, self._ended)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: worker, sock=process.detach())
        except Exception as error:  # noqa: BLE001 - the waiting turns are refused
            self._starting = None
            logger.error("no worker can be started for turns: %s", error)
            if self._workers:
                self._next_start = time.monotonic() + self._wall_seconds
                return
            refusal = VerifierError(UNAVAILABLE, str(error))
            if isinstance(error, VerifierError):
                refusal = error
            while self._queue:
                self._queue.popleft().settle(refusal)
            return
        self._starting = None
        if self._closed:
            worker.disconnect()
            self._run_end(asyncio.to_thread(worker.process.end))
            return
        self._workers.append(worker)
        if not worker.connected:
            self._ended(worker, None)
        self._assign()

    def _answered(self, worker: TurnWorker, turn: PendingTurn, response: Moved) -> None:
        self._episodes.pop(turn.move.key, None)
        if isinstance(response, Answered):
            self._common.note_fault(turn.move.task.env, response.fault)
            if response.reward is None:
                self._episodes[turn.move.key] = (turn.move.task, worker)
        while len(self._episodes) > MOST_LIVE * MOST_WORKERS:
            self._episodes.popitem(last=False)
        turn.settle(response)

    def _ended(self, worker: TurnWorker, death: WorkerDied | None) -> None:
        if worker in self._workers:
            self._lose(worker, worker.current, death or ChannelError("end of file"))

    def _lose(
        self, worker: TurnWorker, culprit: PendingTurn | None, error: OSError | WorkerDied
    ) -> None:
        """Drop a worker and its culprit turn; the other turns continue elsewhere."""
        self._workers.remove(worker)
        worker.disconnect()
        turns = list(worker.turns.values())
        for turn in turns:
            turn.losses += culprit is None
        culprits = [t for t in turns if t is culprit or t.losses == MOST_LOSSES]
        self._queue.extendleft(turn for turn in reversed(turns) if turn not in culprits)
        self._queue = deque(turn for turn in self._queue if not self._refuse_if_lost(turn))
        self._run_end(self._end_lost(worker.process, error, culprits))
        self._assign()

    def _run_end(self, end: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(end)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_lost(
        self, process: WorkerProcess, error: OSError | WorkerDied, culprits: Sequence[PendingTurn]
    ) -> None:
        now = time.monotonic()
        death = await asyncio.to_thread(process.death, error, self._wall_seconds)
        first = culprits[0] if culprits else None
        env = first.move.task.env if first else None
        start = first.begun if first and first.begun is not None else now
        refusal = self._common.note_death(env, death, now - start)
        for turn in culprits:
            turn.settle(refusal)


class TurnWorkers:
    """Turn workers per set of grants. Thread-safe; the first turn starts one."""

    def __init__(self, workers: Workers) -> None:
        self._common = workers
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._pairs: dict[Grants, WorkerPair] = {}
        self._closed = False

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        turns, playable = [PendingTurn(move) for move in moves], list[PendingTurn]()
        for turn in turns:
            env, spec = turn.move.task.env, self._common.specs.get(turn.move.task.env)
            if spec and spec.source == ENVIRONMENT:
                playable.append(turn)
                continue
            why = f"env {env!r} is answered in one turn" if spec else f"{env!r} is not served here"
            turn.settle(VerifierError(UNKNOWN_ENV, why, 0.0))
        with self._lock:
            accepted = bool(playable) and not self._closed
            if accepted:
                self._thread = self._thread or LoopThread("turns")
                self._thread.soon(partial(self._take, playable))
        if not accepted:
            for turn in playable:
                turn.settle(VerifierError(UNAVAILABLE, "the verifier is closed"))
        return [turn.outcome for turn in turns]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread:
            thread.call(self._close_all())
            thread.close()

    def _take(self, turns: Sequence[PendingTurn]) -> None:
        for grants, group in groupby(turns, lambda turn: self._common.granted(turn.move.task.env)):
            if grants not in self._pairs:
                start = partial(self._common.start, grants, turns=True)
                self._pairs[grants] = WorkerPair(self._common, start)
            self._pairs[grants].take(list(group))

    async def _close_all(self) -> None:
        for pair in self._pairs.values():
            await pair.close()
