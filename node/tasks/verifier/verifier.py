"""The judge of answers: a handle of one worker process that builds tasks and scores texts."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from queue import LifoQueue
from typing import Any

from node.lifecycle import Opened
from node.tasks.catalogue import Allowed
from node.tasks.sandbox.sandbox import find_walls
from node.tasks.scorer import Move, Moved
from node.tasks.verifier.dialogue import admit, admitted, answers, refusal, wire
from node.tasks.verifier.turn_workers import TurnWorkers
from node.tasks.verifier.worker_process import (
    HASH_SEED,
    WorkerDied,
    WorkerLimits,
    WorkerProcess,
    Workers,
)
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import CRASHED, Answer, Asked, Judged, JudgeRefused, Verdict

logger = logging.getLogger(__name__)


class Verifier:
    """Scores answers in a process of its own, and starts another when that one is lost.

    A text that makes the worker hang or die costs the group it came in, counted and logged, and
    the time to start a worker again; the caller lives on. Thread-safe; requests queue.

    Args:
        specs: the swarm's catalogue.
        allowed: what this machine's owner lets the catalogue open.
        limits: of the worker process.
        outside: whether texts come from strangers. Then envs whose scoring evaluates text are
            refused, and the worker yields the processor to the node's own work.
        counters: ``verifier_restarts{reason}``, ``answers_unreadable{env}`` go here.
        hash_seed: of the order of sets; another one where somebody wants to know what hangs on it.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        allowed: Allowed | None = None,
        *,
        outside: bool,
        limits: WorkerLimits | None = None,
        counters: Counters | None = None,
        hash_seed: int = HASH_SEED,
    ) -> None:
        self._workers = Workers(
            specs, allowed, limits, counters, outside=outside, hash_seed=hash_seed
        )
        self._turns = TurnWorkers(self._workers)
        self._seconds = self._workers.limits.wall_seconds
        self._lock = threading.Lock()

    def start(self) -> tuple[str, ...]:
        """Start the worker now, name the envs that this machine can serve and log the others.

        Raises:
            CatalogueError: the catalogue cannot be opened here; the message says what to do.
            JudgeRefused: no worker can be started (``unavailable``).
        """
        walls = find_walls()
        if not walls.whole:
            self._workers.counters.add("verifier_unwalled", walls=walls.kind)
        log = logger.info if walls.whole else logger.warning
        log("verifiers are isolated by %s", walls)
        with self._lock:
            workers = self._workers.all()
        for worker in workers:
            for reason in worker.closed.values():
                logger.warning("%s", reason)
        served = {name for worker in workers for name in worker.envs}
        return tuple(name for name in self._workers.specs if name in served)

    def judge(
        self,
        task: TaskRef,
        texts: Sequence[Answer],
        *,
        seconds: float | None = None,
    ) -> Verdict:
        """Rebuild one task and score ``texts``, whole completions, as answers to it.

        Args:
            seconds: most that the request may take, where that is less than its limits say.

        Raises:
            JudgeRefused: no verdict; see :class:`swarm.verification.JudgeRefused` for the reasons.
        """
        (outcome,) = self.judge_some([Asked(task, texts)], seconds=seconds)
        if isinstance(outcome, JudgeRefused):
            raise outcome
        return outcome

    def judge_some(
        self,
        asked: Sequence[Asked],
        *,
        seconds: float | None = None,
    ) -> Sequence[Judged]:
        """Judge the first of some groups in one request: see :meth:`Judge.judge_some`.

        Each has the limits of a request, and what it took is told of it. A group that loses the
        worker is the last; those before it keep their verdicts.
        """
        with self._lock:
            try:
                worker = self._workers.serving(asked[0].task.env)
                first = admitted(worker, self._workers.specs, asked)
            except JudgeRefused as refused:
                return [refused]
            return self._judge(worker, first, math.inf if seconds is None else seconds)

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        """The prompts of tasks, in their order.

        Raises:
            JudgeRefused: one of them cannot be built.
        """
        prompts: dict[int, str] = {}
        numbered = list(enumerate(tasks))
        for grants in dict.fromkeys(self._workers.granted(task.env) for task in tasks):
            part = [(n, task) for n, task in numbered if self._workers.granted(task.env) == grants]
            prompts |= zip((n for n, _ in part), self._prompts([t for _, t in part]), strict=True)
        return [prompts[n] for n, _ in numbered]

    def _prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        reply = self._ask({"tasks": [wire(task) for task in tasks]}, tasks)
        prompts = reply.get("prompts")
        if not isinstance(prompts, list) or len(prompts) != len(tasks):
            raise JudgeRefused(CRASHED, "the worker's prompts are malformed")
        return [str(prompt) for prompt in prompts]

    @property
    def environments(self) -> frozenset[str]:
        """Names of the envs that are played, not answered in one turn."""
        return frozenset(n for n, spec in self._workers.specs.items() if spec.source == ENVIRONMENT)

    @property
    def unrepeatable(self) -> frozenset[str]:
        """Those of them that never answer twice alike, as far as they have been opened."""
        return self._workers.unrepeatable

    @property
    def waiting(self) -> frozenset[str]:
        """Those of them that are asynchronous, as far as they have been opened."""
        return self._workers.waiting

    @property
    def closed(self) -> Mapping[str, str]:
        """Of each env that this machine does not serve what keeps it closed, once it was met."""
        return self._workers.closed

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """Begin turns in environments; in their order, what comes of each as soon as it has.

        They are taken in workers of their own. What hangs or breaks one loses its own trajectory;
        the others go on in another worker. No outcome raises, whatever an environment does. What
        is to be called when one is there must not wait for another.
        """
        return self._turns.play_each(moves)

    def play(self, moves: Sequence[Move]) -> list[Moved]:
        """Take turns in environments, and wait for all; what comes of each, in their order."""
        return [outcome.result() for outcome in self.play_each(moves)]

    @property
    def pid(self) -> int | None:
        """Process id of the worker of tasks without grants; None while there is none."""
        with self._lock:
            return self._workers.pid()

    def memory_mib(self) -> float:
        """Resident memory of the workers, 0 while there is none."""
        with self._lock:
            judging = self._workers.memory_mib()
        return judging + self._turns.memory_mib()

    @property
    def busy(self) -> bool:
        """Whether the worker has something to do, or is being started or ended."""
        return self._lock.locked()

    def close(self) -> None:
        """End the workers. Nothing can be asked afterwards; turns under way are refused."""
        self._turns.close()
        with self._lock:
            self._workers.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, message: dict[str, Any], tasks: Sequence[TaskRef]) -> dict[str, Any]:
        """The reply of the worker that serves the first task's env."""
        with self._lock:
            worker = self._workers.serving(tasks[0].env)
            for task in tasks:
                admit(worker, self._workers.specs, task)
            began = time.monotonic()
            try:
                reply = worker.ask(message, self._seconds)
            except WorkerDied as death:
                raise self._workers.lost(
                    worker, tasks[0].env, death, time.monotonic() - began
                ) from death
            if refused := refusal(reply, time.monotonic() - began):
                raise refused
        return reply

    def _judge(
        self, worker: WorkerProcess, groups: Sequence[Asked], seconds: float
    ) -> list[Judged]:
        each = self._seconds
        outcomes: list[Judged] = []
        last = time.monotonic()
        try:
            for outcome, unreadable in answers(worker, groups, each=each, together=seconds):
                last = time.monotonic()
                if unreadable:
                    env = groups[len(outcomes)].task.env
                    self._workers.counters.add("answers_unreadable", unreadable, env=env)
                outcomes.append(outcome)
        except WorkerDied as death:
            env = groups[len(outcomes)].task.env
            outcomes.append(self._workers.lost(worker, env, death, time.monotonic() - last))
        except BaseException:
            # An answer that nobody waits for any more must not become that of another group.
            self._workers.forget(worker)
            raise
        return outcomes


class VerifierPool(Opened):
    """Hands each request to a verifier that is free, or to the first that becomes so.

    So a text that keeps a worker busy holds up that worker alone. With as many callers at a time
    as there are verifiers, nobody waits. The one used last is used next, so that those which are
    never needed start no process.

    Args:
        verifiers: opened and closed with the pool.
    """

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._verifiers = verifiers
        self._free: LifoQueue[Verifier] = LifoQueue()

    def start(self) -> tuple[str, ...]:
        """Names of the envs that are served; see :meth:`Verifier.start`."""
        with self._one() as verifier:
            return verifier.start()

    def judge(
        self,
        task: TaskRef,
        texts: Sequence[Answer],
        *,
        seconds: float | None = None,
    ) -> Verdict:
        """See :meth:`node.tasks.verifier.verifier.Verifier.judge`."""
        with self._one() as verifier:
            return verifier.judge(task, texts, seconds=seconds)

    def judge_some(
        self,
        asked: Sequence[Asked],
        *,
        seconds: float | None = None,
    ) -> Sequence[Judged]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.judge_some`."""
        with self._one() as verifier:
            return verifier.judge_some(asked, seconds=seconds)

    @property
    def environments(self) -> frozenset[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.environments`."""
        return self._verifiers[0].environments

    @property
    def unrepeatable(self) -> frozenset[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.unrepeatable`."""
        return frozenset[str]().union(*(each.unrepeatable for each in self._verifiers))

    @property
    def waiting(self) -> frozenset[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.waiting`."""
        return frozenset[str]().union(*(each.waiting for each in self._verifiers))

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """See :meth:`Verifier.play_each`; one has the episodes of all."""
        return self._verifiers[0].play_each(moves)

    def play(self, moves: Sequence[Move]) -> list[Moved]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.play`."""
        return self._verifiers[0].play(moves)

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.prompts`."""
        with self._one() as verifier:
            return verifier.prompts(tasks)

    def _open(self, stack: ExitStack) -> None:
        for verifier in self._verifiers:
            self._free.put(stack.enter_context(verifier))

    @contextmanager
    def _one(self) -> Iterator[Verifier]:
        verifier = self._free.get()
        try:
            yield verifier
        finally:
            self._free.put(verifier)
