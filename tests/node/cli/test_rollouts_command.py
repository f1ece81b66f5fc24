"""``swarm-node rollouts`` shows what was asked and answered last."""

from __future__ import annotations

from dataclasses import asdict, replace

from node.monitor.rollouts import LastRollouts, RolloutsFile
from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal
from tests.node.monitor.test_monitor import RECORD
from tests.node.monitor.test_rollouts import OWN, THEIRS


def test_the_last_ones_are_shown_and_printed_as_json(terminal: Terminal, node: RunFolder) -> None:
    last = LastRollouts()
    last.add([*(replace(OWN, round=n) for n in range(1, 7)), THEIRS])
    RolloutsFile(node.rollouts, last).write(RECORD)
    assert terminal("rollouts", "--config", "node") == 0
    headings = [line.split(",")[:2] for line in terminal.out.splitlines() if line[0] != " "]
    assert headings == [
        ["round 5", " own"],
        ["round 6", " own"],
        ["round 7", " external by 12D3KooWGBdmqRrD…"],
    ]
    assert "Calculate 3 + 4." in terminal.out and "\x1b" not in terminal.out
    told = terminal.json("rollouts", "--config", "node", "-n", "1")
    assert told == [asdict(THEIRS)]


def test_a_node_without_a_round_says_when_there_will_be_some(
    terminal: Terminal, node: RunFolder
) -> None:
    assert terminal("rollouts", "--config", "node") == 1
    assert terminal.err == (
        f"error: no rollouts yet in: {node.root}. A node keeps some from its first round on.\n"
    )
