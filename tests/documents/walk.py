"""Run a page as a reader would: block by block, each in a new shell."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import psutil

from tests.documents.claims import CLAIMS, FAILS, remaining
from tests.documents.environment import copy_tree
from tests.documents.page import Block, arguments, beginnings, blocks, commands, name

PATIENCE = 1800.0
"""Maximum seconds per block; the longest takes two minutes on two idle cores."""
BASH = ("bash", "-euo", "pipefail", "-c")
PYTHON = ("python", "-c")
AT_WORK = {
    "join": (r"^round \d+ \|", 12),
    "bootstrap": (r"^others join with: swarm-node join --peers \S+$", 1),
    "dashboard": (r"^dashboard: http\S+$", 1),
    "demo": (r" \| (\d+) of \1 running$", 1),
}
"""Output pattern of commands that run until Ctrl-C, and its required count.
Then the walk continues; by then a node has a checkpoint."""

AT_THE_END = {
    "join": r"^\d+ rounds are done; run the same command to resume$",
    "bootstrap": r"^stopping cleanly",
    "dashboard": r"^stopping cleanly",
    "demo": r"^wrote the chart to \S+$",
}
"""Output of the same commands after Ctrl-C."""


class PageError(Exception):
    """Raised if a block does not do what its page says."""


def kind(script: str) -> str | None:
    """Return the block's command that runs until Ctrl-C, or None if it ends by itself."""
    words = shlex.split(arguments(commands(script)[-1]) or "")
    name = words[0] if words else ""
    rounds = words[words.index("--rounds") + 1] if "--rounds" in words else None
    endless = rounds == "0" or (rounds is None and name != "demo")
    return name if name in AT_WORK and endless and "--detach" not in words else None


@dataclass(slots=True)
class Running:
    """A shell with its processes and the last command that it runs."""

    command: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def kind(self) -> str | None:
        return kind(self.command)

    @property
    def output(self) -> str:
        return self.log.read_text()

    def told(self, pattern: str) -> str:
        found = re.search(pattern, self.output)
        return found[1] if found else ""

    def until_at_work(self) -> None:
        deadline = time.monotonic() + PATIENCE
        shown, times = AT_WORK[self.kind]
        while len(re.findall(shown, self.output, re.M)) < times:
            if self.process.poll() is not None:
                raise PageError(f"ended with {self.process.returncode}, and was to go on")
            if time.monotonic() > deadline:
                raise PageError(f"was not at work within {PATIENCE:.0f} s")
            time.sleep(0.1)

    def interrupt(self, fails: str | None = None) -> None:
        """Interrupt all processes of the shell, as Ctrl-C does, then :meth:`wait`."""
        if self.process.poll() is not None:
            raise PageError(f"ended by itself with {self.process.returncode}")
        os.killpg(self.process.pid, signal.SIGINT)
        self.wait(fails)
        if not re.search(AT_THE_END[self.kind], self.output, re.M):
            raise PageError(f"ended without {AT_THE_END[self.kind]!r}")

    def wait(self, fails: str | None = None) -> None:
        """Check for status 0, or for status 1 and an output that matches ``fails``."""
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
    """Kill all processes in or below ``folder``; return their command lines."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


SOMEBODY = """
swarm-node init somebody
swarm-node create --config somebody --name somebodys --epoch-seconds 2
swarm-node bootstrap --config somebody --set 'network.listen=["/ip4/127.0.0.1/tcp/0"]'
"""
"""Another swarm, for pages that join one and start none."""


class Walk:
    """Run one page in its own folder, a copy of the source tree.

    The end of a section interrupts its commands. The walk continues after a fault.
    """

    def __init__(self, page: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self.faults: list[str] = []
        self.folder = folder / "tree"
        self._page, self._name, self._variables = page, name(page), variables
        self._logs = folder / "logs"
        self._typed, self._running, self._somebody = (list[Running]() for _ in range(3))
        for made in (self.folder, self._logs):
            made.mkdir()

    def go(self) -> list[str]:
        copy_tree(self.folder)
        try:
            for _, section in groupby(blocks(self._page.read_text()), lambda block: block.section):
                for block in section:
                    self._noting(block.line, lambda block=block: self._do(block))
                self._interrupt(self._running)
                self._typed.clear()
            self._interrupt(self._somebody)
        finally:
            if left := end_all(self.folder):
                self.faults.append(f"left at work: {left}")
        return self.faults

    def _do(self, block: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(block.text)
        elif block.language == "python":
            self._start(PYTHON, block.text, block.line).wait()
        elif block.language == "sh" and (script := remaining(self._name, block.text)):
            self._type(self._filled(script), block.line)
        elif block.language == "text" and self._typed:
            said = self._typed[-1].output
            if missing := [begin for begin in beginnings(block.text) if begin not in said]:
                raise PageError(f"shows what is not printed: {missing}")

    def _type(self, script: str, line: int) -> None:
        running = self._start(BASH, script, line)
        self._typed.append(running)
        if running.kind:
            running.until_at_work()
            self._running.append(running)
        else:
            self._hold_to_claims(running)

    def _start(self, command: tuple[str, ...], script: str, line: int) -> Running:
        log = self._logs / f"{line:04}.log"
        log.with_suffix(".sh").write_text(script)
        return start(command, script, self.folder, self._variables, log)

    def _hold_to_claims(self, running: Running) -> None:
        running.wait(_fails(running.command))
        for begin, claim in CLAIMS.items():
            if running.command.startswith(begin) and (wrong := claim(self.folder)):
                raise PageError(wrong)

    def _interrupt(self, running: list[Running]) -> None:
        while running:
            each = running.pop()
            self._noting(int(each.log.stem), lambda each=each: each.interrupt(_fails(each.command)))

    def _noting(self, line: int, does: Callable[[], None]) -> None:
        """Run a step and record its fault with the line of the block."""
        try:
            does()
        except PageError as fault:
            log = self._logs / f"{line:04}.log"
            said = log.read_text()[-2000:] if log.exists() else ""
            self.faults.append(f"{self._name}:{line} {fault}\n{said}")

    def _filled(self, script: str) -> str:
        """Return ``script`` with placeholders replaced by values that were printed."""
        for stands, filling in PLACEHOLDERS.items():
            if re.search(stands, script):
                script = re.sub(stands, filling(self), script)
        return script

    def address(self) -> str:
        return self._others().told(r"swarm-node join --peers (/\S+)")

    def swarm(self) -> str:
        return self._others().told(r" in swarm '.*' ([0-9a-f]{16})")

    def demo(self) -> str:
        return max(path.name for path in (self.folder / "demo-run").iterdir())

    def _others(self) -> Running:
        if not self._running and not self._somebody:
            self._somebody.append(self._start(BASH, SOMEBODY, 0))
            self._somebody[0].until_at_work()
        return (self._running or self._somebody)[0]


def _fails(command: str) -> str | None:
    return next((told for begin, told in FAILS.items() if command.startswith(begin)), None)


PLACEHOLDERS: dict[str, Callable[[Walk], str]] = {
    r"/ip4/127\.0\.0\.1/tcp/\d+/p2p/12D3Koo\w*…": Walk.address,
    r"(?<=swarm-node trust )12D3Koo…": Walk.address,
    r"\bADDRESS\b": Walk.address,
    r"(?<=--swarm )ID\b": Walk.swarm,
    r"(?<=demo-run/)FOLDER\b": Walk.demo,
}
"""Placeholders in the documents, and the functions that return the printed values."""
