"""One process that an engine runs in, seen from its owner."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from node.concurrency.channel import ChannelError, spawn
from node.concurrency.threads import environment
from node.engines.backend import BackendSettings
from node.engines.weight_snapshot import Snapshot
from node.errors import NodeError
from node.policy.policy import Policy
from swarm.common.util import import_path, in_words

PULSE_SECONDS = 1.0
"""Most seconds, and a step, between two messages of an engine that works."""
START_SECONDS = 1800.0
"""Compiling and measuring a large model takes minutes, on which nothing can be said."""


class Silence:
    """How long an engine has owed its owner a word.

    It owes one from a message that it was sent until it says that it has handled them all and has
    nothing left to write. Silence is counted in the ticks of whoever watches, not by the clock:
    an owner that was stopped for an hour has watched for none of it, and finds what was said
    meanwhile.

    Args:
        patience: seconds of silence before an engine that has started counts as hung.

    Attributes:
        ready: whether it has started; until then it may be silent for ``START_SECONDS``, or for
            ``patience`` where that is more.
        seconds: of silence, as of the last tick.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._sent = 0
        self._handled = 0
        self._heard = False
        self.ready = False
        self.seconds = 0.0

    @property
    def bound(self) -> float:
        """Seconds of silence that are too long."""
        return self._patience if self.ready else max(self._patience, START_SECONDS)

    @property
    def too_long(self) -> bool:
        """Whether it counts as hung."""
        return self.seconds >= self.bound

    def send(self) -> None:
        """Note a message to the engine, before it is sent."""
        with self._lock:
            self._sent += 1

    def hear(self, message: dict[str, Any]) -> None:
        """Note a message of the engine."""
        with self._lock:
            self._heard = True
            self._handled = message.get("idle", self._handled)
            self.ready = self.ready or "ready" in message

    def tick(self, seconds: float) -> None:
        """Note that so many seconds were watched."""
        with self._lock:
            owes = self._handled < self._sent and not self._heard
            self.seconds = self.seconds + seconds if owes else 0.0
            self._heard = False


log = logging.getLogger(__name__)

MODULE = "node.engines.process.worker"
LAST_LINES = 20
END_SECONDS = 5.0
ROUTINE = re.compile(r"\b(DEBUG|INFO)\b")
"""Lines that do not tell why a process ended."""
SLOW = "If it was slow and did not hang, raise engine.patience."
MEMORY = "If memory ran out, choose a smaller policy.model or a lower engine.gpu_memory."


class EngineChild:
    """Starts the process at once and does not wait for it.

    Two threads take in whatever it says, so that it never waits to be read. Another one kills it
    when it hangs, which ends every wait for it. Messages may be sent from any thread.

    Args:
        settings: of its back-end.
        variables: of its environment, beside this process's.
        patience: seconds that it may be silent for while it owes an answer; see
            :class:`node.engines.process.child.Silence`.
        module: what to run; see :mod:`node.engines.process.worker`.
    """

    def __init__(
        self,
        settings: BackendSettings,
        variables: Mapping[str, str],
        patience: float,
        module: str = MODULE,
    ) -> None:
        inherited = {**os.environ, **variables, "PYTHONPATH": import_path()}
        self._process, self._channel = spawn(module, inherited)
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._silence = Silence(patience)
        self._hung = False
        self._ending = threading.Event()
        self._failure = ""
        self._remedied = False
        self._listeners = [
            threading.Thread(target=work, daemon=True) for work in (self._receive, self._overhear)
        ]
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        for thread in (*self._listeners, self._watcher):
            thread.start()
        self.send(asdict(settings))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether its back-end has been opened."""
        return self._silence.ready

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; one that the process does not live to read is dropped, as its end is
        told by :meth:`next`."""
        self._silence.send()
        try:
            with self._sending:
                self._channel.send(message)
        except ChannelError as error:
            log.debug("not sent: %s", error)

    def next(self, seconds: float | None) -> dict[str, Any] | None:
        """What was ``written`` or ``done`` next, None where the process has ended; nothing at
        all after a :meth:`nudge`.

        Raises:
            queue.Empty: there was none for ``seconds``.
        """
        return self._inbox.get(timeout=seconds)

    def nudge(self) -> None:
        """Let :meth:`next` return."""
        self._inbox.put({})

    def end(self) -> str:
        """End the process where it still runs; how it ended, with its last words."""
        self._ending.set()
        self._watcher.join()
        self._channel.close()
        status = self._wait(END_SECONDS)
        self._kill()
        if status is None:
            status = self._wait(END_SECONDS)
        for listener in self._listeners:
            listener.join(END_SECONDS)
        how = "killed in vain" if status is None else in_words(status)
        return f"{how}: {self._words()}"

    @property
    def remedy(self) -> str:
        """What may help, once it has ended; empty where its last words say it."""
        if self._hung:
            return SLOW
        return "" if self._remedied else MEMORY

    def _words(self) -> str:
        if self._hung:
            return f"it hung, silent for {self._silence.seconds:.0f} seconds"
        return self._failure or (self._lines[-1] if self._lines else "it left no message")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
            os.killpg(self.pid, signal.SIGKILL)

    def _wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _receive(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except ChannelError:
                self._inbox.put(None)
                return
            self._silence.hear(message)
            if "failed" in message:
                self._failure, self._remedied = message["failed"], message["remedy"]
            if "written" in message or "done" in message:
                self._inbox.put(message)

    def _watch(self) -> None:
        while not self._ending.wait(PULSE_SECONDS):
            self._silence.tick(PULSE_SECONDS)
            if self._silence.too_long:
                self._hung = True
                self._kill()
                # One that is stuck in its driver outlives the signal; nobody waits for it.
                self._channel.close()
                return

    def _overhear(self) -> None:
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
    """Starts processes for one engine, one after the other, each on the newest weights.

    Attributes:
        kind: of the engine, a name of :data:`node.config.registry.ENGINES`.
        seed: of the draws, with the policy's version at the start.
        threads: CPU threads of a process.
        patience: seconds that it may be silent for while it has something to do.
        max_rows: completions written side by side.
        options: for the back-end of this kind alone.
        variables: of the process's environment, beside this one's.
        as_checkpoint: the weights are written as a folder that ``transformers`` loads.
        place: the parent of the snapshot's folder; see
            :class:`node.engines.weight_snapshot.Snapshot`.
        module: what the process runs.
        starts: processes so far.
    """

    kind: str
    seed: int
    threads: int
    patience: float
    max_rows: int = MAX_ROWS
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    as_checkpoint: bool = False
    place: Path | None = None
    module: str = MODULE
    starts: int = field(default=0, init=False)
    _snapshot: Snapshot | None = field(default=None, init=False)

    def start(self, policy: Policy) -> EngineChild:
        """A process that is on its way up.

        Raises:
            NodeError: the machine starts no process, or the weights cannot be written.
        """
        if self._snapshot is None:
            self._snapshot = Snapshot(policy, as_checkpoint=self.as_checkpoint, place=self.place)
        self.starts += 1
        settings = self._settings(policy, self._snapshot)
        variables = {**environment(self.threads), **self.variables}
        try:
            return EngineChild(settings, variables, self.patience, self.module)
        except OSError as error:
            raise NodeError(
                "no process can be started for the engine",
                error,
                "Raise the limits of processes and open files (ulimit -u, ulimit -n).",
            ) from error

    def write(self, policy: Policy) -> None:
        """Hand the weights over to the process that runs, if one was ever started.

        Raises:
            NodeError: they cannot be written; the earlier ones are whole.
        """
        if self._snapshot:
            self._snapshot.write(policy)

    def remove(self) -> None:
        """Take the weights away."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot:
            snapshot.remove()

    def _settings(self, policy: Policy, snapshot: Snapshot) -> BackendSettings:
        return BackendSettings(
            kind=self.kind,
            folder=str(snapshot.folder),
            dtype=str(policy.model.dtype).removeprefix("torch."),
            device=str(policy.device),
            stop_ids=policy.stop_ids,
            context_length=policy.context_length,
            seed=Random(f"{self.seed}/{policy.version}/{self.starts}").getrandbits(31),
            max_rows=self.max_rows,
            options=dict(self.options),
        )
