"""What the demo makes of nodes' records, also of rounds in which there was nothing to measure."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from node.demo.summary import SwarmView, draw, summarise_node, summarise_swarm, table
from node.monitor.record import RoundRecord


def record(number: int, **figures: float | None) -> RoundRecord:
    return RoundRecord(
        **{"round": number, "policy_step": 0, "time": 0.0, "reward_own": None, **figures}
    )


QUIET = [record(1), record(2)]
BUSY = [record(1, reward_own=0.25, informative_own=0.5, reward_eval=0.125), *QUIET[1:]]


def shown(what: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    return console.file.getvalue()


def test_a_node_that_measured_nothing_has_dashes_and_no_part_in_the_means(tmp_path: Path) -> None:
    nodes = [summarise_node(name, "", "tiny", rows) for name, rows in (("a", QUIET), ("b", BUSY))]
    summary = summarise_swarm("5eed" * 8, nodes, 1.0, tmp_path / "chart.png")
    told = json.loads(summary.as_json(), parse_constant=pytest.fail)
    assert told["nodes"][0]["reward_first"] is None
    assert (told["reward_first"], told["eval_last"]) == (0.25, 0.125)
    text = shown(table(summary))
    assert "– → –" in text and "0.25 → 0.25" in text and "0.12 → 0.12" in text


def test_a_swarm_at_work_shows_means_of_the_rounds_that_measured() -> None:
    text = shown(SwarmView(2, 2, Console(height=40)).render({"a": QUIET, "b": BUSY}))
    quiet, busy = (line.split() for line in text.splitlines() if line.strip()[:2] in ("a ", "b "))
    assert quiet[:6] == ["a", "2", "–", "–", "–", "–"]
    assert busy[:6] == ["b", "2", "0.250", "–", "0.125", "50%"]


def test_rounds_that_measured_nothing_are_no_points_of_the_chart(tmp_path: Path) -> None:
    draw({"a": QUIET, "b": BUSY}, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 0
