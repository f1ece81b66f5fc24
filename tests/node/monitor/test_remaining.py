"""What is left of a run with an end."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from node.monitor.live import ROUNDS, LivePanel, PlainLines, Remaining
from node.monitor.record import RoundRecord
from node.monitor.rollouts import LastRollouts
from swarm.common.util import duration
from tests.node.monitor.test_monitor import RECORD


def done(number: int, seconds: float) -> RoundRecord:
    return replace(RECORD, round=number, seconds={"total": seconds})


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.2, "1 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (720.0, "12 min"),
        (7199.0, "120 min"),
        (7200.0, "2 h"),
        (172_800.0, "2 days"),
    ],
)
def test_a_time_is_in_the_unit_that_suits_it(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_the_rest_is_estimated_from_the_mean_round() -> None:
    remaining = Remaining(40)
    remaining.after(done(9, 10.0))
    assert remaining.after(done(10, 20.0)) == "about 8 min left"


def test_rounds_of_long_ago_count_no_more() -> None:
    remaining = Remaining(200)
    remaining.after(done(1, 1e6))
    told = [remaining.after(done(n, 6.0)) for n in range(2, ROUNDS + 2)]
    assert told[-1] == f"about {duration((200 - ROUNDS - 1) * 6.0)} left"


def test_nothing_is_left_at_the_end_and_no_end_is_no_estimate() -> None:
    assert Remaining(40).after(done(40, 10.0)) == ""
    assert Remaining(40).after(done(41, 10.0)) == "", "the limit was lowered"
    assert Remaining(0).after(done(10, 10.0)) == ""
    assert Remaining(40).after(replace(RECORD, seconds={})) == ""


def test_the_panel_and_the_lines_show_it() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    panel = LivePanel("bench", 40, LastRollouts(), console)
    panel.write(done(10, 20.0))
    panel.close()
    assert "10 of 40, about 10 min left, policy step 6" in console.file.getvalue()
    lines = PlainLines(40, plain := Console(file=io.StringIO(), width=20))
    lines.write(done(10, 20.0))
    lines.write(done(40, 20.0))
    shown = plain.file.getvalue().splitlines()
    assert shown[0].endswith("| about 10 min left")
    assert "left" not in shown[1]
