"""One engine process as its owner sees it: start, messages, hang detection, end."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from node.engines.engine import BackendSettings
from node.engines.weight_snapshot import Snapshot
from node.errors import NodeError
from node.policy.policy import Policy
from node.threads import environment
from swarm.common.child_process import ChannelError, kill_group, spawn, waited
from swarm.common.util import import_path, in_words

log = logging.getLogger(__name__)

PULSE_SECONDS = 1.0  # maximum time, plus one step, between messages of a working engine
START_SECONDS = 1800.0  # compiling and profiling a large model takes minutes without messages


class Watchdog:
    """Track how long an engine has owed its owner a message.

    It owes one from each message sent to it until it reports that all are handled and nothing is
    left to sample. Silence is counted in ticks of the watcher, not by the clock: an owner that was
    stopped for an hour finds the messages of that hour. After ``timeout`` seconds an engine counts
    as hung; one that is not yet ready may take ``START_SECONDS`` if that is more.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._sent = 0
        self._handled = 0
        self._received = False
        self.ready = False
        self.seconds = 0.0

    @property
    def too_long(self) -> bool:
        limit = self._timeout if self.ready else max(self._timeout, START_SECONDS)
        return self.seconds >= limit

    def send(self) -> None:
        """Record a message to the engine, before it is sent."""
        with self._lock:
            self._sent += 1

    def receive(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._received = True
            self._handled = message.get("idle", self._handled)
            self.ready = self.ready or "ready" in message

    def tick(self, seconds: float) -> None:
        """Record that the watcher watched for ``seconds``."""
        with self._lock:
            owes = self._handled < self._sent and not self._received
            self.seconds = self.seconds + seconds if owes else 0.0
            self._received = False


MODULE = "node.engines.process.worker"
LAST_LINES = 20
END_SECONDS = 5.0
ROUTINE = re.compile(r"\b(DEBUG|INFO)\b")  # lines that do not explain why a process ended
SLOW = "If it was slow, increase engine.timeout."
MEMORY = (
    "If memory ran out, choose a smaller policy.model or a lower engine.gpu_memory_utilization."
)


class EngineChild:
    """An engine process, started at construction without waiting for it.

    Two threads read its output, so that it never blocks. Another one kills it when it hangs, which
    ends every wait for it. Any thread may send messages. ``variables`` extend this process's
    environment.
    """

    def __init__(
        self,
        settings: BackendSettings,
        variables: Mapping[str, str],
        timeout: float,
        module: str = MODULE,
    ) -> None:
        env = {**os.environ, **variables, "PYTHONPATH": import_path()}
        self._process, self._channel = spawn(module, env)
        self.pid = self._process.pid
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._watchdog = Watchdog(timeout)
        self._hung = False
        self._ending = threading.Event()
        self._failure = ""
        self._remedied = False
        self._listeners = [
            threading.Thread(target=target, daemon=True)
            for target in (self._receive, self._read_stderr)
        ]
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        for thread in (*self._listeners, self._watcher):
            thread.start()
        self.send(asdict(settings))

    @property
    def ready(self) -> bool:
        return self._watchdog.ready

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, or drop it if the process has ended, which :meth:`next` reports."""
        self._watchdog.send()
        try:
            with self._sending:
                self._channel.send(message)
        except ChannelError as error:
            log.debug("not sent: %s", error)

    def next(self, seconds: float | None) -> dict[str, Any] | None:
        """Return the next ``written`` or ``done`` message; None once the process ended.

        After a :meth:`nudge` it is empty. Raises queue.Empty after ``seconds`` without one.
        """
        return self._inbox.get(timeout=seconds)

    def nudge(self) -> None:
        self._inbox.put({})

    def end(self) -> str:
        """End the process if it still runs; return how it ended, with its last message."""
        self._ending.set()
        self._watcher.join()
        self._channel.close()
        status = waited(self._process, END_SECONDS)
        kill_group(self._process)
        if status is None:
            status = waited(self._process, END_SECONDS)
        for listener in self._listeners:
            listener.join(END_SECONDS)
        outcome = "could not be killed" if status is None else in_words(status)
        return f"{outcome}: {self._last_message()}"

    @property
    def remedy(self) -> str:
        """Advice after its end; empty if its last message contains it."""
        if self._hung:
            return SLOW
        return "" if self._remedied else MEMORY

    def _last_message(self) -> str:
        if self._hung:
            return f"it did not respond for {self._watchdog.seconds:.0f} seconds"
        return self._failure or (self._lines[-1] if self._lines else "it left no message")

    def _receive(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except ChannelError:
                self._inbox.put(None)
                return
            self._watchdog.receive(message)
            if "failed" in message:
                self._failure, self._remedied = message["failed"], message["remedy"]
            if "written" in message or "done" in message:
                self._inbox.put(message)

    def _watch(self) -> None:
        while not self._ending.wait(PULSE_SECONDS):
            self._watchdog.tick(PULSE_SECONDS)
            if self._watchdog.too_long:
                self._hung = True
                kill_group(self._process)
                # A process stuck in its driver survives the signal; do not wait for it.
                self._channel.close()
                return

    def _read_stderr(self) -> None:
        pipe = self._process.stderr
        assert pipe is not None
        with pipe:
            for line in pipe:
                text = line.decode(errors="replace").strip()
                if text and not ROUTINE.search(text):
                    self._lines.append(text)
                if text:
                    log.debug("engine %d: %s", self.pid, text)


MAX_ROWS = 64


@dataclass(slots=True)
class Starter:
    """Starts one engine's processes, one after the other, each on the newest weights."""

    backend: str
    seed: int  # of the draws, together with the policy's version at the start
    threads: int  # CPU threads of a process
    timeout: float  # timeout in seconds while the process has work
    max_rows: int = MAX_ROWS
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    as_checkpoint: bool = False  # weights in a folder that ``transformers`` loads
    place: Path | None = None  # parent of the snapshot's folder
    module: str = MODULE
    starts: int = field(default=0, init=False)  # processes so far
    _snapshot: Snapshot | None = field(default=None, init=False)

    def start(self, policy: Policy) -> EngineChild:
        """Start a process without waiting for it; raise NodeError if that fails."""
        if self._snapshot is None:
            self._snapshot = Snapshot(policy, as_checkpoint=self.as_checkpoint, place=self.place)
        self.starts += 1
        settings = BackendSettings(
            backend=self.backend,
            folder=str(self._snapshot.folder),
            dtype=str(policy.model.dtype).removeprefix("torch."),
            device=str(policy.device),
            stop_ids=policy.stop_ids,
            context_length=policy.context_length,
            seed=Random(f"{self.seed}/{policy.version}/{self.starts}").getrandbits(31),
            max_rows=self.max_rows,
            options=dict(self.options),
        )
        variables = {**environment(self.threads), **self.variables}
        try:
            return EngineChild(settings, variables, self.timeout, self.module)
        except OSError as error:
            raise NodeError(
                "cannot start a process for the engine",
                error,
                "Raise the limits of processes and open files (ulimit -u, ulimit -n).",
            ) from error

    def write(self, policy: Policy) -> None:
        """Write weights, if a process was ever started; a NodeError leaves earlier ones."""
        if self._snapshot:
            self._snapshot.write(policy)

    def remove(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot:
            snapshot.remove()
