"""A terminal for the tests of commands, and a node that init made in it."""

import json
import sys
from pathlib import Path

import pytest

from node.cli.main import run
from node.storage.run_folder import RunFolder


class Terminal:
    """Runs commands as the installed program does, in an empty folder."""

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
        """What a command that succeeds prints."""
        assert self(*args) == 0, self.err
        return self.out

    def json(self, *args: str):
        return json.loads(self.ok(*args, "--json"))

    def fails(self, status: int, *args: str) -> str:
        """The error of a command that ends with this status."""
        assert self(*args) == status
        return self.err

    def refuses(self, status: int, *args: str) -> str:
        """The one line of an error."""
        (line,) = self.fails(status, *args).splitlines()
        return line


@pytest.fixture
def terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("node.monitor.output.LONG_WAIT_SECONDS", 600.0)  # on a busy machine
    return Terminal(monkeypatch, capsys)


@pytest.fixture
def node(terminal):
    terminal.ok("init", "node")
    return RunFolder(Path("node").absolute())
