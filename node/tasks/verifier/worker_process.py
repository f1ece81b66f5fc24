"""Starting, asking and ending one worker process, seen from the node."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from node.concurrency.channel import Channel, ChannelError
from node.concurrency.child_process import spawn
from node.tasks.errors import CatalogueError
from node.tasks.sandbox.confine import Confinement
from node.tasks.sandbox.namespaces import DIED_OF
from node.tasks.sandbox.walls import before, find_walls
from swarm.common.util import import_path, in_words
from swarm.verification import UNAVAILABLE, JudgeRefused

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
