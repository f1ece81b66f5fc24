"""The judge of answers: a handle of one worker process that builds tasks and scores texts."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from node.tasks.catalogue import Allowed
from node.tasks.errors import CatalogueError
from node.tasks.moves import Move, Moved
from node.tasks.sandbox.grants import Grants
from node.tasks.sandbox.walls import find_walls
from node.tasks.verifier.dialogue import admit, admitted, answers, refusal, wire
from node.tasks.verifier.playing import moved
from node.tasks.verifier.worker_process import WorkerDied, WorkerLimits, WorkerProcess
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.common.counters import Counters
from swarm.judge import (
    CRASHED,
    TIMEOUT,
    UNAVAILABLE,
    Answer,
    Asked,
    Judged,
    JudgeRefused,
    Verdict,
)
from swarm.task_ref import TaskRef

logger = logging.getLogger(__name__)

MOST_MOVES = 256
"""In one request."""


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
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        allowed: Allowed | None = None,
        *,
        outside: bool,
        limits: WorkerLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._allowed = replace(allowed or Allowed(), walled=find_walls().whole)
        self._specs = {spec.name: spec for spec in specs}
        files = self._allowed.message()["files"]
        self._plain = Grants(tuple(files[name] for name in self._specs if name in files))
        self._grants = {name: self._grant(name) for name in self._specs}
        self._outside = outside
        self._limits = limits or WorkerLimits()
        self._counters = counters or Counters()
        self._lock = threading.Lock()
        self._workers: dict[Grants, WorkerProcess] = {}
        self._closed = False

    def start(self) -> tuple[str, ...]:
        """Start the worker now, name the envs that this machine can serve and log the others.

        Raises:
            CatalogueError: the catalogue cannot be opened here; the message says what to do.
            JudgeRefused: no worker can be started (``unavailable``).
        """
        walls = find_walls()
        if not walls.whole:
            self._counters.add("verifier_unwalled", walls=walls.kind)
        log = logger.info if walls.whole else logger.warning
        log("verifiers are isolated by %s", walls)
        with self._lock:
            workers = [self._running(grants) for grants in dict.fromkeys(self._grants.values())]
        for worker in workers:
            for reason in worker.closed.values():
                logger.warning("%s", reason)
        served = {name for worker in workers for name in worker.envs}
        return tuple(name for name in self._specs if name in served)

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
            JudgeRefused: no verdict; see :class:`swarm.judge.JudgeRefused` for the reasons.
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
        """Judge the first of some groups in one request: see :meth:`swarm.judge.Judge.judge_some`.

        Each has the limits of a request, and what it took is told of it. A group that loses the
        worker is the last; those before it keep their verdicts.
        """
        with self._lock:
            try:
                worker = self._serving(asked[0].task.env)
                first = admitted(worker, self._specs, asked)
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
        for grants in dict.fromkeys(self._granted(task.env) for task in tasks):
            part = [(n, task) for n, task in numbered if self._granted(task.env) == grants]
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
        return frozenset(n for n, spec in self._specs.items() if spec.source == ENVIRONMENT)

    def play(self, moves: Sequence[Move]) -> list[Moved]:
        """Take turns in environments; what comes of each, in their order.

        What hangs or breaks the worker loses its own trajectory; the others are played again.
        """
        found: dict[int, Moved] = {}
        while left := [move for move in moves if move.key not in found]:
            with self._lock:
                found |= self._play(left)
        return [found[move.key] for move in moves]

    def _play(self, moves: Sequence[Move]) -> dict[int, Moved]:
        """What comes of the first of some turns, of one at the least."""
        first, found = moves[0], dict[int, Moved]()
        grants = self._granted(first.task.env)
        alike = [move for move in moves if self._granted(move.task.env) == grants]
        try:
            worker = self._serving(first.task.env)
        except JudgeRefused as refused:
            return {move.key: refused for move in alike}
        try:
            admit(worker, self._specs, first.task)
        except JudgeRefused as refused:
            return {first.key: refused}
        began = time.monotonic()
        try:
            for move, answer in moved(worker, alike[:MOST_MOVES], self._limits.wall_seconds):
                found[move.key], began = answer, time.monotonic()
        except WorkerDied as death:
            lost = next(move for move in alike if move.key not in found)
            seconds = time.monotonic() - began
            found[lost.key] = self._lost(worker, lost.task.env, death, seconds)
        return found

    @property
    def pid(self) -> int | None:
        """Process id of the worker of tasks without grants; None while there is none."""
        with self._lock:
            worker = self._workers.get(self._plain)
            return worker.pid if worker else None

    def memory_mib(self) -> float:
        """Resident memory of the workers, 0 while there is none."""
        with self._lock:
            return sum(worker.memory_mib() for worker in self._workers.values())

    @property
    def busy(self) -> bool:
        """Whether the worker has something to do, or is being started or ended."""
        return self._lock.locked()

    def close(self) -> None:
        """End the workers. Nothing can be asked afterwards."""
        with self._lock:
            self._closed = True
            for worker in self._workers.values():
                worker.end()
            self._workers.clear()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, message: dict[str, Any], tasks: Sequence[TaskRef]) -> dict[str, Any]:
        """The reply of the worker that serves the first task's env."""
        with self._lock:
            worker = self._serving(tasks[0].env)
            for task in tasks:
                admit(worker, self._specs, task)
            began = time.monotonic()
            try:
                reply = worker.ask(message, self._limits.wall_seconds)
            except WorkerDied as death:
                raise self._lost(worker, tasks[0].env, death, time.monotonic() - began) from death
            if refused := refusal(reply, time.monotonic() - began):
                raise refused
        return reply

    def _judge(
        self, worker: WorkerProcess, groups: Sequence[Asked], seconds: float
    ) -> list[Judged]:
        each = self._limits.wall_seconds
        outcomes: list[Judged] = []
        last = time.monotonic()
        try:
            for outcome, unreadable in answers(worker, groups, each=each, together=seconds):
                last = time.monotonic()
                if unreadable:
                    env = groups[len(outcomes)].task.env
                    self._counters.add("answers_unreadable", unreadable, env=env)
                outcomes.append(outcome)
        except WorkerDied as death:
            env = groups[len(outcomes)].task.env
            outcomes.append(self._lost(worker, env, death, time.monotonic() - last))
        except BaseException:
            # An answer that nobody waits for any more must not become that of another group.
            self._forget(worker)
            raise
        return outcomes

    def _lost(
        self, worker: WorkerProcess, env: str, death: WorkerDied, seconds: float
    ) -> JudgeRefused:
        self._forget(worker)
        reason = TIMEOUT if death.ran_out_of_time else CRASHED
        self._counters.add("verifier_restarts", reason=reason)
        logger.warning("the worker was lost on env %r: %s", env, death)
        return JudgeRefused(reason, str(death), seconds)

    def _forget(self, worker: WorkerProcess) -> None:
        worker.end()
        self._workers = {grants: each for grants, each in self._workers.items() if each != worker}

    def _serving(self, env: str) -> WorkerProcess:
        """The worker of an env.

        Raises:
            JudgeRefused: none can be had (``unavailable``).
        """
        try:
            return self._running(self._granted(env))
        except CatalogueError as error:
            # It opened once; a file or package has changed under a running node.
            logger.error("the worker cannot be started again: %s", error)
            raise JudgeRefused(UNAVAILABLE, str(error)) from error

    def _running(self, grants: Grants) -> WorkerProcess:
        if self._closed:
            raise JudgeRefused(UNAVAILABLE, "the verifier is closed")
        worker = self._workers.get(grants)
        if worker and not worker.alive():
            # Lost while idle, to the system or an operator: no text is to blame.
            logger.warning("the worker died between requests; starting another")
            self._counters.add("verifier_restarts", reason="idle")
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[grants] = self._start(grants)
        return worker

    def _start(self, grants: Grants) -> WorkerProcess:
        specs = [spec for name, spec in self._specs.items() if self._grants[name] == grants]
        own = grants.confinement(
            find_walls(),
            memory_mib=self._limits.memory_mib,
            nice=10 if self._outside else 0,
        )
        message = {"specs": [asdict(s) for s in specs], "allowed": self._allowed.message()}
        return WorkerProcess.start(message, self._limits, own)

    def _grant(self, env: str) -> Grants:
        allowed = self._allowed
        return replace(
            self._plain,
            read=self._plain.read + tuple(allowed.read.get(env, ())),
            network=env in allowed.network,
            evaluates=env in allowed.evaluating and allowed.walled,
        )

    def _granted(self, env: str) -> Grants:
        """What the worker of an env has; of an env that nobody knows, what any has."""
        return self._grants.get(env, self._plain)
