"""Starting, asking and ending one worker process, seen from the node."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from node.concurrency.channel import Channel, ChannelError, spawn
from node.errors import CatalogueError
from node.tasks.catalogue import Allowed
from node.tasks.sandbox.confine import Confinement
from node.tasks.sandbox.namespaces import DIED_OF
from node.tasks.sandbox.sandbox import Grants, before, find_walls
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.common.counters import Counters
from swarm.common.util import import_path, in_words
from swarm.verification import CRASHED, TIMEOUT, UNAVAILABLE, JudgeRefused

logger = logging.getLogger(__name__)

MODULE = "node.tasks.verifier.worker"
HASH_SEED = 0
"""Of every worker in the swarm: some verifiable families iterate over sets of strings, and with it
build the same question from the same seed."""
_END_SECONDS = 2.0
_STARTS = ThreadPoolExecutor(1, "worker-starts")
"""Starts all workers: one ends with the thread that started it, which must outlive any caller."""

_OUT_OF_CPU = (-signal.SIGXCPU, DIED_OF + signal.SIGXCPU)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker may use. More than any honest answer needs, by a wide margin.

    Attributes:
        cpu_seconds: CPU time a request.
        wall_seconds: time a request, measured by the node.
        memory_mib: address space of the process.
        start_seconds: time to start and open the catalogue.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_mib: int = 1024
    start_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class OpenEnv:
    """What the worker says of an env it has opened."""

    levels: int
    evaluates_text: bool
    replayable: bool = True
    waits: bool = False


class WorkerDied(Exception):  # noqa: N818 - what happened, for the verifier to judge
    """The worker hung, died or spoke nonsense, and is gone.

    Attributes:
        ran_out_of_time: it used up its CPU or wall time.
    """

    def __init__(self, detail: str, *, ran_out_of_time: bool) -> None:
        super().__init__(detail)
        self.ran_out_of_time = ran_out_of_time


class WorkerProcess:
    """One live worker. Not thread-safe. After :class:`WorkerDied` it is ended and reaped.

    Attributes:
        envs: what it has opened, by name.
        closed: of each other env of the catalogue, what keeps it closed here.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self.envs: dict[str, OpenEnv] = {}
        self.closed: dict[str, str] = {}

    @classmethod
    def start(
        cls,
        catalogue: dict[str, Any],
        limits: WorkerLimits,
        own: Confinement,
        *,
        hash_seed: int,
    ) -> WorkerProcess:
        """Start a worker and wait until it has opened the catalogue.

        Raises:
            CatalogueError: it cannot be opened here.
            JudgeRefused: the process did not come up (``unavailable``).
        """
        worker = cls._spawn(limits, own, hash_seed)
        try:
            reply = worker.ask(catalogue, limits.start_seconds)
        except WorkerDied as death:
            detail = f"{death}: {worker._last_words()}"
            logger.error("no worker can be started: %s", detail)
            raise JudgeRefused(UNAVAILABLE, detail) from death
        worker._stop_listening()
        if "error" in reply:
            worker.end()
            raise CatalogueError(str(reply["error"]))
        worker.envs = {
            name: OpenEnv(env["levels"], env["evaluates"], env["replayable"], env["waits"])
            for name, env in reply["envs"].items()
        }
        worker.closed = reply["closed"]
        return worker

    @classmethod
    def _spawn(cls, limits: WorkerLimits, own: Confinement, hash_seed: int) -> WorkerProcess:
        options = json.dumps({"cpu_seconds": limits.cpu_seconds, "confinement": asdict(own)})
        outside = before(find_walls(), own.readable, network=own.network)
        # Standard error is never a log file: the worker may not write to files.
        environment = worker_environment(hash_seed)
        starting = _STARTS.submit(spawn, MODULE, environment, options, before=outside)
        return cls(*starting.result())

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Raises:
            WorkerDied: there is none; the worker has been ended.
        """
        self.tell(message, seconds)
        return self.hear(seconds)

    def tell(self, message: dict[str, Any], seconds: float) -> None:
        """Send one request; raises as :meth:`ask`."""
        try:
            self._channel.send(message, seconds)
        except (TimeoutError, ChannelError) as error:
            raise self.death(error, seconds) from error

    def hear(self, seconds: float) -> dict[str, Any]:
        """Wait for the next reply; raises as :meth:`ask`."""
        try:
            return self._channel.receive(seconds)
        except (TimeoutError, ChannelError) as error:
            raise self.death(error, seconds) from error

    def detach(self) -> socket.socket:
        """Its channel's socket: whoever has that talks to the worker from now on, and closes it."""
        return self._channel.detach()

    def death(self, error: OSError | WorkerDied, seconds: float) -> WorkerDied:
        """End it, and say what it died of: no reply in ``seconds``, or what ``error`` has met."""
        if isinstance(error, WorkerDied):
            self.end()
            return error
        if isinstance(error, TimeoutError):
            self._reap(0.0)
            return WorkerDied(f"no reply in {seconds:g} s", ran_out_of_time=True)
        status = self._reap(_END_SECONDS)
        return WorkerDied(f"ended with {in_words(status)}", ran_out_of_time=status in _OUT_OF_CPU)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def memory_mib(self) -> float:
        """Resident memory, of those that wait for it as well; 0 once the process has ended."""
        try:
            first = psutil.Process(self.pid)
            all_of_it = [first, *first.children(recursive=True)]
            return sum(float(each.memory_info().rss) for each in all_of_it) / (1 << 20)
        except psutil.NoSuchProcess:
            return 0.0

    def end(self) -> None:
        """Close the channel, which ends the worker, and reap it."""
        self._reap(_END_SECONDS)

    def _last_words(self) -> str:
        """The last line that a worker which has ended wrote to its standard error."""
        words = self._process.communicate()[1].decode(errors="replace").strip()
        return words.rsplit("\n", 1)[-1] or "it left no message"

    def _stop_listening(self) -> None:
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _reap(self, patience: float) -> int:
        """Close the channel, end the process if that does not, and return its exit status."""
        self._channel.close()
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def worker_environment(hash_seed: int = HASH_SEED) -> dict[str, str]:
    """All that the worker inherits: where to import from, and one order for sets.

    Libraries look for a home directory when they are imported. In the sandbox the user has no
    entry in the user database, so without HOME they would fail; the folder need not exist.
    """
    return {
        "PYTHONPATH": import_path(),
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
        "HOME": "/nonexistent",
    }


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
