"""The worker processes of a verifier: one for each set of grants, started when it is needed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace

from node.tasks.catalogue import Allowed
from node.tasks.errors import CatalogueError
from node.tasks.sandbox.grants import Grants
from node.tasks.sandbox.walls import find_walls
from node.tasks.verifier.worker_process import WorkerDied, WorkerLimits, WorkerProcess
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.common.counters import Counters
from swarm.verification import CRASHED, TIMEOUT, UNAVAILABLE, JudgeRefused

logger = logging.getLogger(__name__)


class Workers:
    """Not thread-safe but for what it says of environments; for what the arguments mean see
    :class:`node.tasks.verifier.verifier.Verifier`.

    Attributes:
        specs: of the catalogue, by name.
        limits: of each worker.
        counters: ``verifier_restarts{reason}``.
        unrepeatable: names of environments that never answer twice alike, once it was met.
        waiting: names of those that are asynchronous, likewise.
        closed: of each env that is not served here, what keeps it closed, likewise.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        allowed: Allowed | None,
        limits: WorkerLimits | None,
        counters: Counters | None,
        *,
        outside: bool,
        hash_seed: int,
    ) -> None:
        self._allowed = replace(allowed or Allowed(), walled=find_walls().whole)
        self.specs = {spec.name: spec for spec in specs}
        files = self._allowed.message()["files"]
        self.plain = Grants(tuple(files[name] for name in self.specs if name in files))
        self._grants = {name: self._grant(name) for name in self.specs}
        self._outside = outside
        self._hash_seed = hash_seed
        self.limits = limits or WorkerLimits()
        self.counters = counters or Counters()
        self.unrepeatable: frozenset[str] = frozenset()
        self.waiting: frozenset[str] = frozenset()
        self.closed: dict[str, str] = {}
        self._workers: dict[Grants, WorkerProcess] = {}
        self._closed = False
        self._lock = threading.Lock()

    def all(self) -> list[WorkerProcess]:
        """One for each set of grants that the catalogue has, running."""
        return [self._running(grants) for grants in dict.fromkeys(self._grants.values())]

    def memory_mib(self) -> float:
        """Resident memory of those that run."""
        return sum(worker.memory_mib() for worker in self._workers.values())

    def pid(self) -> int | None:
        """Process id of the one without grants; None while there is none."""
        worker = self._workers.get(self.plain)
        return worker.pid if worker else None

    def close(self) -> None:
        """End them; none can be had afterwards."""
        self._closed = True
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def lost(
        self, worker: WorkerProcess, env: str, death: WorkerDied, seconds: float
    ) -> JudgeRefused:
        """Let go of one that died on an env; what to say of whatever it was at."""
        self.forget(worker)
        return self.loss(env, death, seconds)

    def loss(self, env: str | None, death: WorkerDied, seconds: float) -> JudgeRefused:
        """Count and log the end of a worker; what to say of whatever it was at.

        Args:
            env: that it died on; None where it was at nothing, and no text is to blame.
        """
        reason = TIMEOUT if death.ran_out_of_time else CRASHED if env else "idle"
        self.counters.add("verifier_restarts", reason=reason)
        logger.warning("the worker was lost on %s: %s", f"env {env!r}" if env else "nothing", death)
        return JudgeRefused(reason, str(death), seconds)

    def forget(self, worker: WorkerProcess) -> None:
        """End a worker that cannot be asked any more."""
        worker.end()
        self._workers = {grants: each for grants, each in self._workers.items() if each != worker}

    def serving(self, env: str) -> WorkerProcess:
        """The worker of an env.

        Raises:
            JudgeRefused: none can be had (``unavailable``).
        """
        try:
            return self._running(self.granted(env))
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
            self.counters.add("verifier_restarts", reason="idle")
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[grants] = self._start(grants)
        return worker

    def for_turns(self, grants: Grants) -> WorkerProcess:
        """Another worker, for the environments with these grants; the caller's own. Thread-safe.

        Raises:
            CatalogueError, JudgeRefused: none can be had.
        """
        return self._start(grants, turns=True)

    def _start(self, grants: Grants, *, turns: bool = False) -> WorkerProcess:
        specs = [
            spec
            for name, spec in self.specs.items()
            if self._grants[name] == grants and (spec.source == ENVIRONMENT or not turns)
        ]
        own = grants.confinement(
            find_walls(),
            memory_mib=self.limits.memory_mib,
            nice=10 if self._outside else 0,
        )
        message = {"specs": [asdict(s) for s in specs], "allowed": self._allowed.message()}
        worker = WorkerProcess.start(message, self.limits, own, hash_seed=self._hash_seed)
        with self._lock:
            self.unrepeatable |= {n for n, env in worker.envs.items() if not env.replayable}
            self.waiting |= {n for n, env in worker.envs.items() if env.waits}
            self.closed = {**self.closed, **worker.closed}
        return worker

    def _grant(self, env: str) -> Grants:
        allowed = self._allowed
        return replace(
            self.plain,
            read=self.plain.read + tuple(allowed.read.get(env, ())),
            network=env in allowed.network,
            evaluates=env in allowed.evaluating and allowed.walled,
        )

    def granted(self, env: str) -> Grants:
        """What the worker of an env has; of an env that nobody knows, what any has."""
        return self._grants.get(env, self.plain)
