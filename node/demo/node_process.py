"""A ``swarm-node`` command as a process of its own, and the records that it writes."""

from __future__ import annotations

import json
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
from swarm.common.child_process import command as child_command
from swarm.common.child_process import kill_group, own_group, variables, waited

GRACE_SECONDS = 15.0


class NodeProcess:
    """One ``swarm-node`` command in its own process group, with a run folder.

    The command stops when its standard input closes, so it does not outlive a killed parent.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self._interrupted = False
        self._output = (folder / "output.log").open("ab")
        self._process = subprocess.Popen(
            child_command("node.cli.main", *command, "--stop-on-eof"),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**variables(), **(environment or {})},
            **own_group(),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The command's exit status, None while it runs."""
        return self._process.poll()

    def status(self) -> dict[str, Any] | None:
        """Return the process's latest status, None before the first one."""
        try:
            status: dict[str, Any] = json.loads((self.folder / "status.json").read_bytes())
        except (FileNotFoundError, PermissionError):  # Windows: it is being replaced
            return None
        return status if status["pid"] == self.pid else None

    def wait_for_address(self, timeout: float) -> str:
        """Return the node's first address; raises ``NodeError`` after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            status = self.status()
            if status and status["addresses"]:
                return str(status["addresses"][0])
            if self.exit_code is not None:
                break
            time.sleep(0.05)
        problem = f"{self.folder.name} did not start"
        remedy = f"Its output is in {self._output.name}."
        raise NodeError(problem, self.last_words() or "it printed nothing", remedy)

    def output(self) -> list[str]:
        """Return the lines that the command has printed."""
        text = Path(self._output.name).read_text(encoding="utf-8", errors="replace")
        return text.strip().splitlines()

    def last_words(self) -> str:
        return next(reversed(self.output()), "")

    def interrupt(self) -> None:
        """Ask the process once to finish its work and stop."""
        if self.exit_code is None and not self._interrupted:
            self._interrupted = True
            if sys.platform == "win32" and self._process.stdin:
                self._process.stdin.close()  # Windows has no signal for another process
            else:
                self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        if self.exit_code is None:
            kill_group(self._process)
        self._process.wait()

    def wait(self, timeout: float) -> int | None:
        """Return the exit status, None if it still runs after ``timeout`` s."""
        return waited(self._process, timeout)

    def close(self) -> None:
        """Stop the process; kill it after the grace period."""
        self.interrupt()
        if self.wait(GRACE_SECONDS) is None:
            self.kill()
        if self._process.stdin:
            self._process.stdin.close()
        self._output.close()


def stop_all(processes: Sequence[NodeProcess]) -> None:
    """Interrupt all processes, then wait for each, so that they stop concurrently."""
    for process in processes:
        process.interrupt()
    for process in processes:
        process.close()


KEPT = 4096  # records in memory, for a swarm that runs without end


class RecordTail:
    """Reads new records of a metrics file incrementally; each round counts once."""

    def __init__(self, path: Path) -> None:
        self._lines = GrowingLines(path)
        self._records: deque[RoundRecord] = deque(maxlen=KEPT)

    def look(self) -> list[RoundRecord]:
        """Return the records of the last rounds, oldest first."""
        lines, _ = self._lines.new()
        for record in map(parsed, lines):
            if not self._records or record.round > self._records[-1].round:
                self._records.append(record)
        return list(self._records)
