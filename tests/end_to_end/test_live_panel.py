"""A node in a real terminal."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.end_to_end.commands import QUICK
from tests.node.monitor.job_control import TerminalJob

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_panel_turns_to_rollouts_lets_itself_be_stopped_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, number: signal.Signals
) -> None:
    join = ("-m", "node.cli.main", "join", *QUICK, "--rounds", "100000")
    with TerminalJob(*join, folder=tmp_path) as node:
        node.until("r: the last rollouts")
        node.until(" left, policy step ")
        node.press(b"r")
        node.until("r: the figures")
        node.until("completion")
        node.press(b"\x1a")
        assert node.order("wait") == "stopped"
        assert node.modes() == node.before
        node.order("front")
        os.killpg(node.pid, signal.SIGCONT)
        node.until("r: the figures")
        node.press(b"r")
        node.until("policy step ")
        if number is signal.SIGINT:
            node.press(b"\x03")
        else:
            os.kill(node.pid, number)
        assert node.order("wait") == "exited 0"
        assert node.modes() == node.before
    file = tmp_path / "swarm-run" / "rollouts.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rounds = [json.loads(line)["round"] for line in file.read_text().splitlines()]
    metrics = (tmp_path / "swarm-run" / "metrics.jsonl").read_text().splitlines()
    assert rounds[-1] == json.loads(metrics[-1])["round"]
