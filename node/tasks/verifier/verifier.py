"""Verifier, which owns processes that score answers, and a pool of verifiers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from queue import LifoQueue
from typing import Any

from node.lifecycle import Opened
from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.scorer import Move, Moved, OpenEnv, Reading, Scorer
from node.tasks.task_set import Allowed
from node.tasks.verifier.replies import admit, admitted, answers, refusal, wire
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
from swarm.verification import CRASHED, Answers, Requests, Scored, Scores, Submission, VerifierError

logger = logging.getLogger(__name__)


class Verifier(Scorer):
    """Scorer of answers in a worker process, which it restarts if lost.

    A text that hangs or kills the worker costs its group and a restart, counted and logged.
    Thread-safe; requests queue. If peers wrote the texts (``outside``), the worker runs at low
    priority. ``hash_seed`` sets the order of sets. Counts ``verifier_restarts{reason}``,
    ``answers_unreadable{env}`` and ``verifier_unsandboxed{sandbox}``.
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

    def log_with(self, other: Verifier) -> None:
        """Log the first error of an env's code only if ``other`` has not done so."""
        self._workers.faulty = other._workers.faulty

    def start(self) -> tuple[str, ...]:
        """Start the workers, log closed envs and return the names of served ones.

        Raises TaskSetError: the task set cannot be opened here; VerifierError: no worker starts.
        """
        support = sandbox_support()
        if not support.whole:
            self._workers.counters.add("verifier_unsandboxed", sandbox=support.kind)
        log = logger.info if support.whole else logger.warning
        log("verifiers are isolated by %s", support)
        with self._lock:
            workers = self._workers.start_all()
        for worker in workers:
            for reason in worker.closed.values():
                logger.warning("%s", reason)
        served = {name for worker in workers for name in worker.envs}
        return tuple(name for name in self._workers.specs if name in served)

    def verify(self, task: TaskRef, texts: Answers, *, seconds: float | None = None) -> Scores:
        """Rebuild one task and score ``texts``, whole completions, as answers to it."""
        (outcome,) = self.verify_some([Submission(task, texts)], seconds=seconds)
        if isinstance(outcome, VerifierError):
            raise outcome
        return outcome

    def verify_some(self, asked: Requests, *, seconds: float | None = None) -> Sequence[Scored]:
        """Score the first of several groups in one request, each with its own time.

        A group that loses the worker is the last; earlier groups keep their results. Groups of a
        family that is not served are refused together.
        """
        with self._lock:
            try:
                worker = self._workers.serving(asked[0].task.env)
            except VerifierError as error:
                return [error]
            try:
                batch = admitted(worker, self._workers.specs, asked)
            except VerifierError as error:
                key = asked[0].task.env, asked[0].task.level
                similar = takewhile(lambda item: (item.task.env, item.task.level) == key, asked)
                return [error for _ in similar]
            return self._verify(worker, batch, math.inf if seconds is None else seconds)

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        return [prompt for prompt, _ in self.examples(tasks)]

    def examples(self, tasks: Sequence[TaskRef]) -> list[tuple[str, str | None]]:
        """Return each task's prompt and a right completion in the form that it asks for.

        The completion is None if no right answer is known. Raises ``VerifierError`` if one fails.
        """
        results: dict[int, tuple[str, str | None]] = {}
        numbered = list(enumerate(tasks))
        for grants in dict.fromkeys(self._workers.granted(task.env) for task in tasks):
            batch = [(n, task) for n, task in numbered if self._workers.granted(task.env) == grants]
            results |= zip((n for n, _ in batch), self._built([t for _, t in batch]), strict=True)
        return [results[n] for n, _ in numbered]

    def explain(self, task: TaskRef | None, completion: str) -> Reading:
        """Return what is read of a completion; nothing for an unknown or multi-turn task."""
        if task is None or task.env in self.environments:
            return Reading()
        reply = self._replied([task], completion=completion)
        right = reply.get("right")
        return Reading(str(reply.get("read")), right if isinstance(right, str) else None)

    @property
    def environments(self) -> frozenset[str]:
        return frozenset(n for n, spec in self._workers.specs.items() if spec.source == ENVIRONMENT)

    @property
    def opened_envs(self) -> Mapping[str, OpenEnv]:
        return self._workers.opened_envs

    @property
    def closed(self) -> Mapping[str, str]:
        """Reason for each env that is not served, once a worker has reported it."""
        return self._workers.closed

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """Begin turns in environments; return a future per move, in order.

        Separate workers take them. A turn that hangs or crashes one loses only its own trajectory.
        No future raises. A callback on one must not wait for another.
        """
        return self._turns.play_each(moves)

    def close(self) -> None:
        """End the workers; pending turns and later requests are refused."""
        self._turns.close()
        with self._lock:
            self._workers.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _built(self, tasks: Sequence[TaskRef]) -> list[tuple[str, str | None]]:
        reply = self._replied(tasks)
        prompts, completions = reply.get("prompts"), reply.get("written")
        for items in (prompts, completions):
            if not isinstance(items, list) or len(items) != len(tasks):
                raise VerifierError(CRASHED, "the worker's prompts are malformed")
        return [
            (str(prompt), None if right is None else str(right))
            for prompt, right in zip(prompts or [], completions or [], strict=True)
        ]

    def _replied(self, tasks: Sequence[TaskRef], **more: str) -> dict[str, Any]:
        message = {"tasks": [wire(task) for task in tasks], **more}
        with self._lock:
            worker = self._workers.serving(tasks[0].env)
            for task in tasks:
                admit(worker, self._workers.specs, task)
            start = time.monotonic()
            try:
                reply = worker.ask(message, self._seconds)
            except WorkerDied as death:
                elapsed = time.monotonic() - start
                self._workers.end(worker)
                raise self._workers.note_death(tasks[0].env, death, elapsed) from death
            if error := refusal(reply, time.monotonic() - start):
                raise error
        return reply

    def _verify(self, worker: WorkerProcess, groups: Requests, seconds: float) -> list[Scored]:
        times = [self._workers.seconds_for(group) for group in groups]
        outcomes: list[Scored] = []
        last = time.monotonic()
        try:
            for outcome, unreadable, fault in answers(worker, groups, each=times, together=seconds):
                last = time.monotonic()
                env = groups[len(outcomes)].task.env
                self._workers.note_fault(env, fault)
                if unreadable:
                    self._workers.counters.add("answers_unreadable", unreadable, env=env)
                outcomes.append(outcome)
        except WorkerDied as death:
            env, elapsed = groups[len(outcomes)].task.env, time.monotonic() - last
            self._workers.end(worker)
            outcomes.append(self._workers.note_death(env, death, elapsed))
        except BaseException:
            # A late reply must not be taken for the reply to another group.
            self._workers.end(worker)
            raise
        return outcomes


class VerifierPool(Opened, Scorer):
    """Pool that passes each request to the next free verifier.

    A text that keeps a worker busy delays only that worker. Unneeded verifiers start no process.
    """

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._verifiers = verifiers
        self._free: LifoQueue[Verifier] = LifoQueue()

    def start(self) -> tuple[str, ...]:
        with self._one() as verifier:
            return verifier.start()

    def verify(self, task: TaskRef, texts: Answers) -> Scores:
        with self._one() as verifier:
            return verifier.verify(task, texts)

    def verify_some(self, asked: Requests) -> Sequence[Scored]:
        with self._one() as verifier:
            return verifier.verify_some(asked)

    @property
    def environments(self) -> frozenset[str]:
        return self._verifiers[0].environments

    @property
    def opened_envs(self) -> Mapping[str, OpenEnv]:
        return ChainMap(*(dict(verifier.opened_envs) for verifier in self._verifiers))

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """Begin turns in the first verifier, which holds all episodes."""
        return self._verifiers[0].play_each(moves)

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
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
