"""Node processes that a parent starts, watches and always ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.errors import NodeError
from node.monitor.history import GrowingLines, parsed
from node.monitor.record import RoundRecord

GRACE_SECONDS = 15.0


class NodeProcess:
    """One ``swarm-node`` command in a process group of its own, writing to a run folder.

    Its standard input is a pipe that only this parent holds: the command is told to stop when
    the pipe closes, so that nothing outlives a parent that was killed.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self._interrupted = False
        self._output = (folder / "output.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "node.cli.main", *command, "--stop-on-eof"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The command's exit status, None while it runs."""
        return self._process.poll()

    def status(self) -> dict[str, Any] | None:
        """What the process last wrote of itself, None before the first time."""
        try:
            status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return None
        return status if status["pid"] == self.pid else None

    def wait_for_address(self, timeout: float) -> str:
        """The first address the node can be dialled at.

        Raises:
            NodeError: the process ended or named no address within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            status = self.status()
            if status and status["addresses"]:
                return str(status["addresses"][0])
            if self.exit_code is not None:
                break
            time.sleep(0.05)
        raise NodeError(
            f"{self.folder.name} did not come up",
            self.last_words() or "it printed nothing",
            f"All it printed is in {self._output.name}.",
        )

    def last_words(self) -> str:
        """The last line the process printed."""
        lines = Path(self._output.name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def interrupt(self) -> None:
        """Ask the process, once, to finish what it does and stop."""
        if self.exit_code is None and not self._interrupted:
            self._interrupted = True
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self.exit_code is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout: float) -> int | None:
        """Exit status once the process ended, None where it still runs after ``timeout`` s."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Stop the process, hard when it takes longer than the grace period."""
        self.interrupt()
        if self.wait(GRACE_SECONDS) is None:
            self.kill()
        if self._process.stdin:
            self._process.stdin.close()
        self._output.close()


def stop_all(processes: Sequence[NodeProcess]) -> None:
    """Interrupt all first, then wait for each, so that they wind down side by side."""
    for process in processes:
        process.interrupt()
    for process in processes:
        process.close()


KEPT = 4096
"""Records of the last rounds, for a swarm that runs until somebody stops it."""


class RecordTail:
    """Reads what a metrics file has got since the last look, so that looking never takes longer.

    A file that takes the place of the one before is read from its beginning; a round counts once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = GrowingLines()
        self._records: deque[RoundRecord] = deque(maxlen=KEPT)

    def look(self) -> list[RoundRecord]:
        """The records of the last rounds, oldest first; empty before the first round's end."""
        lines, _ = self._lines.new([self._path])
        for record in map(parsed, lines):
            if not self._records or record.round > self._records[-1].round:
                self._records.append(record)
        return list(self._records)
