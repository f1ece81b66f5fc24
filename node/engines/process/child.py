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
from dataclasses import asdict
from typing import Any

from node.concurrency.channel import ChannelError
from node.concurrency.child_process import spawn
from node.engines.backend import BackendSettings
from node.engines.process.watchdog import PULSE_SECONDS, Silence
from swarm.common.util import import_path, in_words

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
            :class:`node.engines.process.watchdog.Silence`.
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
