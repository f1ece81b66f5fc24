"""A swarm as its founder sees it: in a terminal, and in a pipe."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from node.demo.run import DemoSettings, node_overrides, opening
from node.demo.summary import LINE_SECONDS, Paced, SwarmView
from node.monitor.record import RoundRecord
from node.monitor.terminal import Terminal
from tests.node.monitor.test_monitor import RECORD

SAID_BEFORE = 5
"""Lines: what runs, how to join, where the address is broken in two, and where to look."""


def terminal(width: int = 80, height: int = 24) -> Terminal:
    console = Terminal()
    console.file, console.width, console.height = io.StringIO(), width, height
    return console


def history(rounds: int, **changes: object) -> list[RoundRecord]:
    return [replace(RECORD, round=n, **changes) for n in range(1, rounds + 1)]


@pytest.mark.parametrize("nodes", [4, 13, 14, 64])
def test_how_to_join_stays_in_sight_whatever_the_number_of_nodes(nodes: int) -> None:
    console = terminal()
    records = {f"node-{n}": history(3) for n in range(1, nodes + 1)}
    console.print(SwarmView(0, nodes, console).render(records))
    lines = console.file.getvalue().splitlines()
    assert SAID_BEFORE + len(lines) <= console.height
    rows = [line for line in lines if line.strip().startswith("node-")]
    told = [line.strip() for line in lines if "more" in line]
    assert len(rows) == min(nodes, 13)
    assert told == ([f"{nodes - 13} more"] if nodes > 13 else [])


def test_a_line_tells_of_all_nodes() -> None:
    view = SwarmView(150, 3, terminal())
    records = {
        "node-1": history(40, reward_own=0.25, reward_eval=0.5),
        "node-2": history(44, reward_own=0.75, reward_external=None),
        "node-3": [],
    }
    assert view.line(records) == (
        "rounds 40 to 44 of 150 | reward 0.500 | external 0.500 (3.0 of 4) | held-out 0.500 | "
        "2 of 3 at work"
    )
    assert "rounds 40 to 44 |" in SwarmView(0, 3, terminal()).line(records)


def test_before_the_first_round_a_line_says_that_they_start() -> None:
    assert SwarmView(150, 2, terminal()).line({"a": [], "b": []}) == "starting | 0 of 2 at work"


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    shown: list[str] = []
    now = 100.0
    show = Paced(lambda records: shown.extend(records), lambda: now)
    for name, seconds in (("a", 0.0), ("b", 1.0), ("c", LINE_SECONDS), ("d", LINE_SECONDS + 1.0)):
        now = 100.0 + seconds
        show({name: []})
    assert shown == ["a", "c"]


@pytest.mark.parametrize(
    ("tty", "expected"), [(False, "starting | 0 of 2 at work"), (True, "reward by round")]
)
def test_a_pipe_gets_lines_and_a_terminal_a_table(tty: bool, expected: str) -> None:
    console = Console(file=io.StringIO(), force_terminal=tty, width=80, height=24)
    with SwarmView(0, 2, console).shown() as show:
        show({"node-1": [], "node-2": []})
    assert expected in console.file.getvalue()


def test_the_first_words_say_how_long_it_goes_on() -> None:
    until = opening(DemoSettings(rounds=0), Path("here"))
    assert until == "a swarm of 4 and a seed in here, until Ctrl-C"
    limited = opening(DemoSettings(rounds=30), Path("here"))
    assert limited.endswith(", to round 30; with --rounds 0 it goes on until Ctrl-C")


@pytest.mark.parametrize(("rounds", "every"), [(150, 10), (30, 2), (5, 1), (0, 10)])
def test_a_node_is_evaluated_now_and_then_also_without_a_last_round(
    rounds: int, every: int
) -> None:
    keys = node_overrides(DemoSettings(rounds=rounds), 0, 1)
    assert (keys["schedule.rounds"], keys["schedule.eval_every"]) == (rounds, every)
