"""A page as a reader goes through it: block by block, each in a shell of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

from tests.documents.claims import CLAIMS, FAILS
from tests.documents.environment import copy_tree
from tests.documents.left_out import remaining
from tests.documents.page import Block, beginnings, blocks, name
from tests.documents.shell import BASH, PYTHON, PageError, Running, end_all, start

SOMEBODY = """
swarm-node init somebody
swarm-node create --config somebody --name somebodys --epoch-seconds 2
swarm-node bootstrap --config somebody --set 'network.listen=["/ip4/127.0.0.1/tcp/0"]'
"""
"""Whom a page means that says how to join others and starts none."""


class Walk:
    """Goes through one page in a folder of its own, which begins as the source tree.

    What goes on until Ctrl-C gets it at the end of its section.

    Attributes:
        faults: what did not hold; the walk goes on behind it.
    """

    def __init__(self, page: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self.faults: list[str] = []
        self.folder = folder / "tree"
        self._page = page
        self._name = name(page)
        self._variables = variables
        self._logs = folder / "logs"
        self._typed: list[Running] = []
        self._running: list[Running] = []
        self._somebody: list[Running] = []
        for made in (self.folder, self._logs):
            made.mkdir()

    def go(self) -> list[str]:
        """Walk; the faults."""
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
        """Do it, and note what is wrong with it under the line of its block."""
        try:
            does()
        except PageError as fault:
            log = self._logs / f"{line:04}.log"
            said = log.read_text()[-2000:] if log.exists() else ""
            self.faults.append(f"{self._name}:{line} {fault}\n{said}")

    def _filled(self, script: str) -> str:
        """``script`` with what was really printed in the place of what stands for it."""
        for stands, filling in PLACEHOLDERS.items():
            if re.search(stands, script):
                script = re.sub(stands, filling(self), script)
        return script

    def address(self) -> str:
        """Of the first node that runs in this section."""
        return self._others().address or ""

    def swarm(self) -> str:
        """The beginning of the id of its swarm."""
        return self._others().swarm or ""

    def demo(self) -> str:
        """The name of the newest demo's folder."""
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
    r"\bADDRESS\b": Walk.address,
    r"(?<=--swarm )ID\b": Walk.swarm,
    r"(?<=demo-run/)FOLDER\b": Walk.demo,
}
"""What stands in the documents for what a program printed."""
