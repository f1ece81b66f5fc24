"""Fixtures for command tests: a terminal and an initialized node."""

import json
import sys
from pathlib import Path

import pytest

from node.cli.main import run
from node.storage.run_folder import RunFolder


class Terminal:
    """Runs commands as the installed program does."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture
        self.out = ""
        self.err = ""

    def __call__(self, *args: str) -> int:
        self._patch.setattr(sys, "argv", ["swarm-node", *args])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        self.out, self.err = self._capture.readouterr()
        return ended.value.code or 0

    def ok(self, *args: str) -> str:
        """Run a command that must succeed; return its output."""
        assert self(*args) == 0, self.err
        return self.out

    def json(self, *args: str):
        return json.loads(self.ok(*args, "--json"))

    def fails(self, status: int, *args: str) -> str:
        """Run a command that must end with this status; return its errors."""
        assert self(*args) == status
        return self.err

    def refuses(self, status: int, *args: str) -> str:
        """Run a command that must fail with one line; return the line."""
        (line,) = self.fails(status, *args).splitlines()
        return line


@pytest.fixture
def terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("node.monitor.output.LONG_WAIT_SECONDS", 600.0)  # for busy machines
    return Terminal(monkeypatch, capsys)


@pytest.fixture
def node(terminal):
    terminal.ok("init", "node")
    return RunFolder(Path("node").absolute())
