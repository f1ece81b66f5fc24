"""One process that an engine runs in, seen from its owner."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from node.channel import ChannelError
from node.child_process import import_path, in_words, spawn
from node.engines.backend import BackendSettings

log = logging.getLogger(__name__)

MODULE = "node.engines.host"
LAST_LINES = 20
END_SECONDS = 5.0


class EngineChild:
    """Starts the process at once and does not wait for it.

    Two threads take in whatever it says, so that it never waits to be read. Messages may be sent
    from any thread.

    Args:
        settings: of its back-end.
        variables: of its environment, beside this process's.
        module: what to run; see :mod:`node.engines.host`.

    Attributes:
        ready: whether its back-end has been opened; the owner sets it.
        failure: its own account of why it ends; the owner sets it.
    """

    def __init__(
        self, settings: BackendSettings, variables: Mapping[str, str], module: str = MODULE
    ) -> None:
        inherited = {**os.environ, **variables, "PYTHONPATH": import_path()}
        self._process, self._channel = spawn(module, inherited)
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._listeners = [
            threading.Thread(target=work, daemon=True) for work in (self._receive, self._overhear)
        ]
        for listener in self._listeners:
            listener.start()
        self.ready = False
        self.failure = ""
        self.send(asdict(settings))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; one that the process does not live to read is dropped, as its end is
        told by :meth:`next`."""
        try:
            with self._sending:
                self._channel.send(message)
        except ChannelError as error:
            log.debug("not sent: %s", error)

    def next(self, seconds: float | None) -> dict[str, Any] | None:
        """The next message, None where the process has ended.

        Raises:
            queue.Empty: there was none for ``seconds``.
        """
        return self._inbox.get(timeout=seconds)

    def end(self) -> str:
        """End the process where it still runs; how it ended, with its last words."""
        self._channel.close()
        status = self._wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
            os.killpg(self.pid, signal.SIGKILL)
        if status is None:
            status = self._process.wait()
        for listener in self._listeners:
            listener.join(END_SECONDS)
        words = self.failure or (self._lines[-1] if self._lines else "it left no message")
        return f"{in_words(status)}: {words}"

    def _wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _receive(self) -> None:
        while True:
            try:
                self._inbox.put(self._channel.receive())
            except ChannelError:
                self._inbox.put(None)
                return

    def _overhear(self) -> None:
        pipe = self._process.stderr
        assert pipe is not None
        with pipe:
            for line in pipe:
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text)
                    log.debug("engine %d: %s", self.pid, text)
