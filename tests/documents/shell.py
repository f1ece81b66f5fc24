"""Fresh shells for blocks, and those that are left running."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.documents.page import arguments, commands

PATIENCE = 1800.0
"""Seconds for a block; the longest takes some two minutes on two idle cores."""
BASH = ("bash", "-euo", "pipefail", "-c")
PYTHON = ("python", "-c")
AT_WORK = {
    "join": (r"^round \d+ \|", 12),
    "bootstrap": (r"^others join with: swarm-node join --peers \S+$", 1),
    "dashboard": (r"^look at it in a browser: http\S+$", 1),
    "demo": (r" \| (\d+) of \1 at work$", 1),
}
"""What commands that go on until Ctrl-C print once they work, and how often until a reader goes on:
by then a node has a checkpoint."""

AT_THE_END = {
    "join": r"^\d+ rounds are done; the same command goes on from there$",
    "bootstrap": r"^stopping in order",
    "dashboard": r"^stopping in order",
    "demo": r"^the chart is \S+$",
}
"""What they print behind Ctrl-C."""


class PageError(Exception):
    """A block that does not do what its page says."""


def kind(script: str) -> str | None:
    """Which command a block goes on with until Ctrl-C, or None where it ends by itself."""
    words = shlex.split(arguments(commands(script)[-1]) or "")
    name = words[0] if words else ""
    rounds = words[words.index("--rounds") + 1] if "--rounds" in words else None
    endless = rounds == "0" or (rounds is None and name != "demo")
    return name if name in AT_WORK and endless and "--detach" not in words else None


@dataclass(slots=True)
class Running:
    """A shell of its own with its processes, as a terminal has one.

    Attributes:
        command: the last that was typed.
    """

    command: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def kind(self) -> str | None:
        """Which command goes on here until Ctrl-C, or None where it ends by itself."""
        return kind(self.command)

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def address(self) -> str | None:
        """Where others find it."""
        told = re.search(r"swarm-node join --peers (/\S+)", self.output)
        return told[1] if told else None

    @property
    def swarm(self) -> str | None:
        """The beginning of its swarm's id."""
        told = re.search(r" in swarm '.*' ([0-9a-f]{16})", self.output)
        return told[1] if told else None

    def until_at_work(self) -> None:
        """Wait for the first it prints of its work."""
        deadline = time.monotonic() + PATIENCE
        shown, times = AT_WORK[self.kind]
        while len(re.findall(shown, self.output, re.M)) < times:
            if self.process.poll() is not None:
                raise PageError(f"ended with {self.process.returncode}, and was to go on")
            if time.monotonic() > deadline:
                raise PageError(f"was not at work within {PATIENCE:.0f} s")
            time.sleep(0.1)

    def interrupt(self, fails: str | None = None) -> None:
        """Ctrl-C, which reaches all processes of a terminal; as :meth:`wait` then."""
        if self.process.poll() is not None:
            raise PageError(f"ended by itself with {self.process.returncode}")
        os.killpg(self.process.pid, signal.SIGINT)
        self.wait(fails)
        if not re.search(AT_THE_END[self.kind], self.output, re.M):
            raise PageError(f"ended without {AT_THE_END[self.kind]!r}")

    def wait(self, fails: str | None = None) -> None:
        """See it end well, or where it ``fails``, with status 1 and these words."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise PageError(f"did not end within {PATIENCE:.0f} s") from None
        if status != (fails is not None):
            raise PageError(f"ended with {status}")
        if fails and not re.search(fails, self.output):
            raise PageError(f"ended without {fails!r}")
        if not fails and "Traceback" in self.output:
            raise PageError("printed a traceback")


def start(
    command: tuple[str, ...], script: str, folder: Path, variables: Mapping[str, str], log: Path
) -> Running:
    """Run ``script`` in ``folder``, with all it prints in ``log``."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, script],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(commands(script)[-1], process, log)


def end_all(folder: Path) -> list[str]:
    """Kill whatever still works in or below ``folder``; what that was."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
