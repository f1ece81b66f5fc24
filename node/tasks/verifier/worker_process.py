"""Worker processes as the node sees them: start, limits and end."""

from __future__ import annotations

import logging
import math
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from node.errors import TaskSetError
from node.tasks.sandbox.confine import OUT_OF_MEMORY, Confinement
from node.tasks.sandbox.namespaces import DIED_OF
from node.tasks.sandbox.sandbox import WORKER, Grants, launch_prefix, sandbox_support
from node.tasks.scorer import OpenEnv
from node.tasks.task_set import Allowed
from node.tasks.verifier.fork_server import NUMERIC, ForkedProcess, fork
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.common.child_process import Channel, ChannelError, spawn
from swarm.common.counters import Counters
from swarm.common.util import import_path, in_words
from swarm.verification import (
    CPU_LIMIT,
    CRASHED,
    TIMEOUT,
    UNAVAILABLE,
    WORKER_LOST,
    Submission,
    VerifierError,
)

logger = logging.getLogger(__name__)

HASH_SEED = 0  # Of all workers: some families iterate over sets of strings to build a question.
_END_SECONDS = 2.0
_OWN_CODE = ("plugin", ENVIRONMENT)  # sources whose code the user may have written
# A worker ends with the thread that started it, so that thread must outlive any caller.
_STARTS = ThreadPoolExecutor(1, "worker-starts")
_XCPU = getattr(signal, "SIGXCPU", 24)  # Windows has no such signal.
_OUT_OF_CPU = (-_XCPU, DIED_OF + _XCPU)
# No text can send a signal: the system had no memory left, or its user stopped the worker.
_STOPPED = (-9, DIED_OF + 9, -signal.SIGTERM, DIED_OF + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Resource limits of a worker, far above the needs of any honest answer.

    CPU time is per trajectory, one turn or one text that runs as code; other texts have a quarter
    of it. Wall time is per request, turn or group. ``memory_mib`` is address space.
    ``start_seconds`` includes opening the task set.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_mib: int = 1024
    start_seconds: float = 120.0


class WorkerDied(Exception):  # noqa: N818 - what happened, for the verifier to handle
    """The worker hung, died or sent a malformed message, and has been ended.

    ``reason`` is a name of :mod:`swarm.verification`.
    """

    def __init__(self, detail: str, *, reason: str) -> None:
        super().__init__(detail)
        self.reason = reason


# Time limit of a local or a peer's text that runs as code, relative to a group's. A peer's text is
# not wrong where this machine is busy, so the limit of its group comes first.
WITHIN, BEYOND = 0.95, 2.0
# Local answers that take this part of their CPU time are not shared, because of slow machines.
SLOW_PART = 0.1


class WorkerProcess:
    """One live worker. Not thread-safe. :class:`WorkerDied` means ended and reaped."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, channel: Channel) -> None:
        self._process = process
        self.pid = process.pid
        self._channel = channel
        self._replies = 0
        self.envs: dict[str, OpenEnv] = {}
        self.closed: dict[str, str] = {}

    @classmethod
    def start(
        cls,
        task_set: dict[str, Any],
        limits: WorkerLimits,
        own: Confinement,
        *,
        hash_seed: int,
        sources: Collection[str],
        text_seconds: float,
        slow_part: float,
    ) -> WorkerProcess:
        """Start a worker and wait until it has opened the task set.

        ``sources`` are the kinds of task sources of this and further workers; ``text_seconds`` is
        the wall time of a text that runs as code; ``slow_part`` of its CPU time makes an answer
        slow. Raises TaskSetError: the task set cannot be opened here; VerifierError: it did not
        start.
        """
        seconds = limits.start_seconds
        worker = cls(*_launched(own, worker_environment(hash_seed), sources, seconds))
        stderr = worker._process.stderr
        assert stderr is not None
        times = {"cpu_seconds": limits.cpu_seconds, "text_seconds": text_seconds}
        try:
            worker.send({**times, "slow_part": slow_part, "confinement": asdict(own)}, seconds)
            reply = worker.ask(task_set, seconds)
        except WorkerDied as death:
            last_line = stderr.read().decode(errors="replace").strip().rsplit("\n", 1)[-1]
            detail = f"{death}: {last_line or 'it left no message'}"
            logger.error("no worker can be started: %s", detail)
            raise VerifierError(UNAVAILABLE, detail) from death
        stderr.close()
        if "error" in reply:
            worker.end()
            raise TaskSetError(str(reply["error"]))
        worker.envs = {name: OpenEnv(**env) for name, env in reply["envs"].items()}
        worker.closed = reply["closed"]
        return worker

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send one request and return the reply; without one, raise ``WorkerDied``."""
        self.send(message, seconds)
        return self.receive(seconds)

    def send(self, message: dict[str, Any], seconds: float) -> None:
        try:
            self._channel.send(message, seconds)
        except (TimeoutError, ChannelError) as error:
            raise self.death(error, seconds) from error

    def receive(self, seconds: float) -> dict[str, Any]:
        try:
            reply = self._channel.receive(seconds)
        except (TimeoutError, ChannelError) as error:
            raise self.death(error, seconds) from error
        self._replies += 1
        return reply

    def detach(self) -> socket.socket:
        """Return the channel's socket, which the caller then uses and closes."""
        return self._channel.detach()

    def death(self, error: OSError | WorkerDied, seconds: float) -> WorkerDied:
        """End the worker and return the cause: no reply in ``seconds``, or ``error``."""
        if isinstance(error, WorkerDied):
            self.end()
            return error
        if isinstance(error, TimeoutError):
            self._reap(0.0)
            return WorkerDied(f"no reply in {seconds:g} s", reason=TIMEOUT)
        status = self._reap(_END_SECONDS)
        reason = CPU_LIMIT if status in _OUT_OF_CPU else CRASHED
        # Earlier texts may have left it little memory.
        if status in _STOPPED or (status == OUT_OF_MEMORY and self._replies > 1):
            reason = WORKER_LOST
        detail = "no memory left" if status == OUT_OF_MEMORY else in_words(status)
        return WorkerDied(f"ended with {detail}", reason=reason)

    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Close the channel, which ends the worker, and reap it."""
        self._reap(_END_SECONDS)

    def _reap(self, patience: float) -> int:
        self._channel.close()
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _launched(
    sandbox: Confinement, environment: Mapping[str, str], sources: Collection[str], seconds: float
) -> tuple[subprocess.Popen[bytes] | ForkedProcess, Channel]:
    """Start a worker's process: a fork on Linux, unless a command has to confine it."""
    prefix = launch_prefix(sandbox_support(), sandbox.readable, network=sandbox.network)
    # Standard error is never a log file: the worker cannot write files.
    if sys.platform != "linux" or prefix:
        return _STARTS.submit(spawn, WORKER, environment, before=prefix).result()
    try:
        return fork(WORKER, environment, sources, seconds)
    except OSError as error:
        logger.error("no worker can be started: %s", error)
        raise VerifierError(UNAVAILABLE, str(error)) from error


def worker_environment(hash_seed: int = HASH_SEED) -> dict[str, str]:
    """Return all variables the worker inherits: import path and one set order.

    HOME need not exist: the user has no database entry in the sandbox, and libraries look for it.
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
    """Workers of a verifier, one for each set of grants.

    Only :meth:`start`, ``opened_envs`` and ``closed`` are thread-safe; the last two cover the envs
    opened so far.
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
        self._allowed = replace(allowed or Allowed(), sandboxed=sandbox_support().whole)
        self.specs = {spec.name: spec for spec in specs}
        files = self._allowed.message()["files"]
        self.plain = Grants(tuple(files[name] for name in self.specs if name in files))
        self._grants = {name: self._grant(name) for name in self.specs}
        numeric = any(f'"{NUMERIC}"' in level for spec in specs for level in spec.levels)
        self._sources = {spec.source for spec in specs} | ({NUMERIC} if numeric else set())
        self._outside = outside
        self._hash_seed = hash_seed
        self.limits = limits or WorkerLimits()
        self.counters = counters or Counters()
        self.opened_envs: dict[str, OpenEnv] = {}
        self.faulty: set[str] = set()  # envs whose first error is logged
        self.closed: dict[str, str] = {}
        self._workers: dict[Grants, WorkerProcess] = {}
        self._closed = False
        self._lock = threading.Lock()

    def start_all(self) -> list[WorkerProcess]:
        """Return a running worker for each set of grants in the task set."""
        return [self._running(grants) for grants in dict.fromkeys(self._grants.values())]

    def close(self) -> None:
        """End the workers; later requests are refused."""
        self._closed = True
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def seconds_for(self, group: Submission) -> float:
        """Return the timeout of a group: local texts that run as code have it each."""
        per_text = not self._outside and self.granted(group.task.env).evaluates
        return self.limits.wall_seconds * (len(group.texts) if per_text else 1)

    def note_death(self, env: str | None, death: WorkerDied, seconds: float) -> VerifierError:
        """Count and log a worker's death on an env, None if idle; return the refusal."""
        reason = death.reason if env or death.reason == TIMEOUT else "idle"
        self.counters.add("verifier_restarts", reason=reason)
        logger.warning("the worker failed on %s: %s", f"env {env!r}" if env else "nothing", death)
        return VerifierError(reason, str(death), seconds)

    def note_fault(self, env: str, fault: str) -> None:
        """Log the first error that the code of an env raised, empty for none."""
        if fault and env not in self.faulty:
            self.faulty.add(env)
            log = logger.warning if self.specs[env].source in _OWN_CODE else logger.info
            log("the code of env %r raised an error, which counts as wrong: %s", env, fault)

    def end(self, worker: WorkerProcess) -> None:
        """End a worker; the next request for its envs starts another one."""
        worker.end()
        self._workers = {grants: proc for grants, proc in self._workers.items() if proc != worker}

    def serving(self, env: str) -> WorkerProcess:
        """Return the worker of an env; raise ``VerifierError`` if none is available."""
        try:
            return self._running(self.granted(env))
        except TaskSetError as error:
            # It opened before, so a file or package has changed since.
            logger.error("the worker cannot be started again: %s", error)
            raise VerifierError(UNAVAILABLE, str(error)) from error

    def _running(self, grants: Grants) -> WorkerProcess:
        if self._closed:
            raise VerifierError(UNAVAILABLE, "the verifier is closed")
        worker = self._workers.get(grants)
        if worker and not worker.alive():
            # The system or an operator ended it while idle: no text is to blame.
            logger.warning("the worker ended between requests; starting another")
            self.counters.add("verifier_restarts", reason="idle")
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[grants] = self.start(grants)
        return worker

    def start(self, grants: Grants, *, turns: bool = False) -> WorkerProcess:
        """Start another worker, thread-safe; raises as :meth:`WorkerProcess.start`."""
        specs = [
            spec
            for name, spec in self.specs.items()
            if self._grants[name] == grants and (spec.source == ENVIRONMENT or not turns)
        ]
        memory, nice = self.limits.memory_mib, 10 if self._outside else 0
        sandbox = grants.confinement(sandbox_support(), memory_mib=memory, nice=nice)
        worker = WorkerProcess.start(
            {"specs": [asdict(s) for s in specs], "allowed": self._allowed.message()},
            self.limits,
            sandbox,
            hash_seed=self._hash_seed,
            sources=self._sources,
            text_seconds=(BEYOND if self._outside else WITHIN) * self.limits.wall_seconds,
            slow_part=math.inf if self._outside else SLOW_PART,
        )
        with self._lock:
            self.opened_envs = {**self.opened_envs, **worker.envs}
            self.closed = {**self.closed, **worker.closed}
        return worker

    def _grant(self, env: str) -> Grants:
        allowed = self._allowed
        return replace(
            self.plain,
            read=self.plain.read + tuple(allowed.read.get(env, ())),
            network=env in allowed.network,
            evaluates=env in allowed.code_execution and allowed.sandboxed,
        )

    def granted(self, env: str) -> Grants:
        """Return the grants of an env; defaults for an unknown one."""
        return self._grants.get(env, self.plain)
