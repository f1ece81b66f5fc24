"""Commands in what the program prints work as they are printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from node.cli.program import app
from node.monitor.output import COMMANDS, as_typed, program

INSTALLED = Path(sys.executable).parent / "swarm-node"


@pytest.fixture(autouse=True)
def _ask_again() -> None:
    program.cache_clear()


def test_a_command_stays_short_where_the_shell_finds_this_program(monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{INSTALLED.parent}{os.pathsep}{os.defpath}")
    assert as_typed("next: swarm-node join --peers A") == "next: swarm-node join --peers A"


def test_every_command_is_known() -> None:
    groups = {group.name for group in app.registered_groups}
    assert set(COMMANDS) == groups | {command.name for command in app.registered_commands}


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_a_command_is_named_by_its_path_where_the_shell_does_not_find_it(
    monkeypatch, path: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", path)
    typed = as_typed("swarm-node --version")
    assert Path(shlex.split(typed)[0]).is_absolute()
    ran = subprocess.run(
        typed, shell=True, executable="/bin/sh", cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("swarm-node ")


def test_another_program_of_the_same_name_is_not_taken_for_this_one(
    monkeypatch, tmp_path: Path
) -> None:
    other = tmp_path / "swarm-node"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert as_typed("swarm-node join") == f"{shlex.quote(str(INSTALLED))} join"


@pytest.mark.parametrize(
    "text",
    [
        "Install swarm-node again.",
        "my-swarm-node join",
        "/opt/bin/swarm-node join",
        "swarm-node.service runs",
        "https://example.org/swarm-node join",
    ],
)
def test_what_is_no_command_stays_as_it_is(monkeypatch, text: str) -> None:
    monkeypatch.setenv("PATH", "")
    assert as_typed(text) == text
