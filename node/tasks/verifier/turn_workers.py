"""Environment turns in worker processes, separate from those that score answers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from node.tasks.sandbox.sandbox import Grants
from node.tasks.scorer import Answered, Move, Moved, settled
from node.tasks.verifier.worker import MOST_LIVE
from node.tasks.verifier.worker_process import (
    WorkerDied,
    WorkerProcess,
    Workers,
    admit,
    fault_in,
    nonsense,
    refusal,
    wire,
)
from node.threads import LoopThread
from protocol.manifest import ENVIRONMENT
from swarm.common.child_process import ChannelError, Unread, packed
from swarm.groups import TaskRef
from swarm.verification import CRASHED, NOT_REPLAYED, UNAVAILABLE, UNKNOWN_ENV, JudgeRefused

logger = logging.getLogger(__name__)

MOST_LOSSES = 3  # Lost workers without a known culprit, after which a turn is blamed.
MOST_WORKERS = 2
_LOOK_SECONDS = 0.1  # Interval of checks for hanging workers while anything is pending.


@dataclass(slots=True, eq=False)
class PendingTurn:
    """A requested turn; its ``outcome`` is never cancelled, and set once.

    ``begun`` is when its worker first ran it; ``losses`` counts workers lost with it without a
    culprit.
    """

    move: Move
    outcome: Future[Moved] = field(default_factory=Future)
    begun: float | None = None
    losses: int = 0

    def __post_init__(self) -> None:
        self.outcome.set_running_or_notify_cancel()

    def message(self, number: int, seconds: float) -> bytes:
        """Encode the turn; raise ``ValueError`` if its actions are too long."""
        move = self.move
        request = {"turn": number, "key": move.key, "task": wire(move.task)}
        request |= {"actions": list(move.actions), "final": move.final, "seconds": seconds}
        return packed(request)

    def settle(self, moved: Moved) -> None:
        if not self.outcome.done():
            self.outcome.set_result(moved)


def decoded(reply: dict[str, Any], seconds: float) -> Moved:
    """Decode a worker's reply to a turn; raise ``WorkerDied`` if malformed."""
    if refused := refusal(reply, seconds, played=True):
        return refused
    observation, over, reward = (reply.get(name) for name in ("observation", "over", "reward"))
    if not isinstance(observation, str) or not isinstance(over, bool):
        raise nonsense("observation is malformed")
    if reward is not None and not (isinstance(reward, float) and 0.0 <= reward <= 1.0):
        raise nonsense("reward is not a number in [0, 1]")
    return Answered(observation, over, reward, fault_in(reply))


STUCK_SECONDS = 1.0  # A worker that owes a reply and is silent for this long is stuck.
MOST_TURNS = 256  # Per worker at a time.


@dataclass(eq=False)
class TurnWorker(asyncio.Protocol):
    """Connection to one worker; belongs to the thread of its event loop.

    ``answered`` is called for each answered turn, ``rested`` when all received messages are
    processed, ``ended`` when the worker is unusable, with None if it ended by itself. ``turns`` are
    the pending turns by the worker's numbers, oldest first. ``stuck``: the worker delays its turns;
    reset when it sends a message.
    """

    process: WorkerProcess
    wall_seconds: float
    answered: Callable[[TurnWorker, PendingTurn, Moved], None]
    rested: Callable[[], None]
    ended: Callable[[TurnWorker, WorkerDied | None], None]

    def __post_init__(self) -> None:
        self.turns: dict[int, PendingTurn] = {}
        self.stuck = False
        self._unread = Unread()
        self._count = 0
        self._at: int | None = None
        self._since = self._last_message = self._moved_on = time.monotonic()
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def open(self) -> bool:
        return not self.stuck and len(self.turns) < MOST_TURNS

    @property
    def at(self) -> PendingTurn | None:
        """The turn that it runs; None if there is none or it was withdrawn."""
        return None if self._at is None else self.turns.get(self._at)

    def take(self, turn: PendingTurn) -> None:
        """Send it a turn; raise ``ValueError`` if the turn cannot be encoded."""
        message = turn.message(self._count, self.wall_seconds)
        now = time.monotonic()
        if not self._owes:
            self._last_message = now
        if not self.turns:
            self._moved_on = now
        turn.begun = None
        self.turns[self._count] = turn
        self._count += 1
        self._write(message)

    def drop(self, numbers: Sequence[int]) -> list[PendingTurn]:
        """Withdraw turns; later messages about them are ignored."""
        self._write(packed({"drop": list(numbers)}))
        return [self.turns.pop(number) for number in numbers]

    def silent(self, now: float) -> bool:
        """Return whether it owes a message and has been silent for a while."""
        return self._owes and now - self._last_message > STUCK_SECONDS

    def full(self, now: float) -> bool:
        """Return whether it has the maximum of turns and made no recent progress."""
        return len(self.turns) >= MOST_TURNS and now - self._moved_on > STUCK_SECONDS

    def overdue(self, now: float) -> bool:
        """Return whether a turn exceeded its time, with a grace period for waiting turns."""
        if self._at is not None and now - self._since > self.wall_seconds:
            return True
        most = self.wall_seconds + STUCK_SECONDS
        if self._at is not None:
            most += self.wall_seconds
        begun = [turn.begun for turn in self.turns.values() if turn.begun is not None]
        if begun and now - min(begun) > most:
            return True
        return (bool(self.turns) or self.stuck) and now - self._moved_on > most

    def late(self) -> PendingTurn | None:
        """Return the turn to blame for an overdue worker, if any."""
        if self._at is not None:
            return self.at
        begun = [turn for turn in self.turns.values() if turn.begun is not None]
        first = next(iter(self.turns.values()), None)
        return min(begun, key=lambda turn: turn.begun or 0.0, default=first)

    def leave(self) -> None:
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
            self.rested()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport:
            self._transport = None
            self.ended(self, None)

    @property
    def _owes(self) -> bool:
        """Whether a message is due soon: it runs a turn or has one to begin."""
        return self._at is not None or any(turn.begun is None for turn in self.turns.values())

    def _write(self, message: bytes) -> None:
        if self._transport:
            self._transport.write(message)

    def _handle(self, message: dict[str, Any]) -> None:
        self._last_message, self.stuck = time.monotonic(), False
        if "turn" in message:
            self._take_answer(self._known(message["turn"]), message)
        else:
            at = message.get("at")
            self._at, self._since = None if at is None else self._known(at), self._last_message
            if (turn := self.at) and turn.begun is None:
                turn.begun = self._moved_on = self._last_message

    def _known(self, number: object) -> int:
        if not isinstance(number, int) or not 0 <= number < self._count:
            raise nonsense("answer is to a turn that was not requested")
        return number

    def _take_answer(self, number: int, message: dict[str, Any]) -> None:
        # A malformed reply is its own turn's fault.
        self._at = number
        if turn := self.turns.get(number):
            moved = decoded(message, self._last_message - (turn.begun or self._last_message))
            del self.turns[number]
            self._moved_on = self._last_message
            self.answered(self, turn, moved)
        self._at = None


class WorkerPair:
    """Up to two workers that take turns; belongs to the thread of an event loop.

    A turn goes to its home, the last worker of its trajectory in play. If that is stuck, a
    second worker starts and gets the turns that can be replayed. If it is overdue, it is ended: the
    turn that it ran is blamed, and the others are queued again.
    """

    def __init__(self, workers: Workers, start: Callable[[], WorkerProcess]) -> None:
        self._all = workers
        self._start = start
        self._wall_seconds = workers.limits.wall_seconds
        self._queue: deque[PendingTurn] = deque()
        self._workers: list[TurnWorker] = []
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
            worker = self._place(turn)
            if worker is None:
                left.append(turn)
                continue
            try:
                admit(worker.process, self._all.specs, turn.move.task)
                worker.take(turn)
            except JudgeRefused as refused:
                turn.settle(refused)
            except ValueError as error:
                turn.settle(JudgeRefused(CRASHED, str(error), 0.0))
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

    def _last_home(self, move: Move) -> TurnWorker | None:
        task, worker = self._homes.get(move.key, (None, None))
        return worker if task == move.task else None

    def _home(self, turn: PendingTurn) -> TurnWorker | None:
        home = self._last_home(turn.move)
        return home if home in self._workers else None

    def _bound(self, turn: PendingTurn) -> bool:
        """Return whether a turn can continue only where its episode is."""
        begun = turn.begun is not None or self._last_home(turn.move) is not None
        env = self._all.opened_envs.get(turn.move.task.env)
        return begun and env is not None and not env.replayable

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
        if isinstance(moved, Answered):
            self._all.note(turn.move.task.env, moved.fault)
            if moved.reward is None:
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
        for turn in turns:
            turn.losses += culprit is None
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
            env, spec = move.task.env, self._all.specs.get(move.task.env)
            if spec and spec.source == ENVIRONMENT:
                turns.append(PendingTurn(move))
                outcomes.append(turns[-1].outcome)
                continue
            why = f"env {env!r} is answered in one turn" if spec else f"{env!r} is not served here"
            outcomes.append(settled(JudgeRefused(UNKNOWN_ENV, why, 0.0)))
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

    def _take(self, turns: Sequence[PendingTurn]) -> None:
        for grants, alike in groupby(turns, lambda turn: self._all.granted(turn.move.task.env)):
            if grants not in self._pairs:
                start = partial(self._all.start, grants, turns=True)
                self._pairs[grants] = WorkerPair(self._all, start)
            self._pairs[grants].take(list(alike))

    async def _close_all(self) -> None:
        for pair in self._pairs.values():
            await pair.close()
