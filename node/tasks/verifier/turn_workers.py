"""Turns in environments, taken in worker processes of their own, apart from those that judge."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby

from node.concurrency.loop_thread import LoopThread
from node.tasks.moves import Move, Moved, settled
from node.tasks.sandbox.grants import Grants
from node.tasks.verifier.playing import Turn
from node.tasks.verifier.worker_pair import WorkerPair
from node.tasks.verifier.workers import Workers
from protocol.manifest import ENVIRONMENT
from swarm.verification import UNAVAILABLE, UNKNOWN_ENV, JudgeRefused


class TurnWorkers:
    """Thread-safe. Nothing is started before the first turn is asked for.

    Args:
        workers: of the verifier; knows the catalogue and how a worker is started.
    """

    def __init__(self, workers: Workers) -> None:
        self._all = workers
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._pairs: dict[Grants, WorkerPair] = {}
        self._closed = False

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """Begin turns; in their order, what comes of each as soon as it has."""
        turns: list[Turn] = []
        outcomes: list[Future[Moved]] = []
        for move in moves:
            if refused := self._refused(move.task.env):
                outcomes.append(settled(refused))
            else:
                turns.append(Turn(move))
                outcomes.append(turns[-1].outcome)
        with self._lock:
            if turns and not self._closed:
                self._thread = self._thread or LoopThread("turns")
                self._thread.soon(partial(self._take, turns))
                return outcomes
        for turn in turns:
            turn.settle(JudgeRefused(UNAVAILABLE, "the verifier is closed"))
        return outcomes

    def memory_mib(self) -> float:
        """Resident memory of the workers that run."""
        return sum(pair.memory_mib() for pair in list(self._pairs.values()))

    def close(self) -> None:
        """End the workers; whoever waits is refused, as is whoever asks afterwards."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread:
            thread.call(self._close_all())
            thread.close()

    def _refused(self, env: str) -> JudgeRefused | None:
        spec = self._all.specs.get(env)
        if spec is None:
            return JudgeRefused(UNKNOWN_ENV, f"{env!r} is not served here", 0.0)
        if spec.source != ENVIRONMENT:
            return JudgeRefused(UNKNOWN_ENV, f"env {env!r} is answered in one turn", 0.0)
        return None

    def _take(self, turns: Sequence[Turn]) -> None:
        for grants, alike in groupby(turns, lambda turn: self._all.granted(turn.move.task.env)):
            if grants not in self._pairs:
                self._pairs[grants] = WorkerPair(self._all, partial(self._all.for_turns, grants))
            self._pairs[grants].take(list(alike))

    async def _close_all(self) -> None:
        for pair in self._pairs.values():
            await pair.close()
