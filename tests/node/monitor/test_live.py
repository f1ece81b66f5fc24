import io
import logging
import time
from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import pytest
from rich.console import Console

from node.monitor import live as module
from node.monitor import output
from node.monitor.live import ROUNDS, PlainLines, Remaining, Stages
from node.monitor.record import Terminal
from swarm.common.util import duration
from tests.node.monitor.job_control import TerminalJob
from tests.node.monitor.test_monitor import RECORD, panel_of

LONG = "x" * 300
SPEAKS = f"""
import sys, time
from contextlib import closing
from node.cli.options import waiting
from node.monitor.live import Stages
from node.monitor.output import guard_output, say
guard_output()
def speak():
    time.sleep(0.3)
    say("aloud")
    say("{LONG}", err=True)
    time.sleep(0.3)
with waiting("loading"):
    speak()
with closing(Stages()) as stages:
    stages.begin("opening")
    speak()
say("done")
"""


class Paper(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def paper(monkeypatch):
    """Return a file that records what is drawn on a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    screen.file, screen.is_interactive = Paper(), True
    monkeypatch.setattr(module, "Terminal", lambda: screen)
    return screen.file


@pytest.mark.parametrize("quiet", [False, True], ids=["drawn", "quiet"])
def test_stages_are_logged_and_drawn_unless_quiet(paper, caplog, quiet):
    caplog.set_level(logging.INFO)
    with closing(Stages(quiet=quiet)) as stages:
        stages.begin("joining the swarm")
        stages.begin("loading tiny")
    for stage in ("joining the swarm", "loading tiny"):
        assert (f"starting: {stage}" in paper.getvalue()) != quiet
    assert not quiet or paper.getvalue() == ""
    assert caplog.messages == ["start: joining the swarm", "start: loading tiny"]


@pytest.mark.parametrize("quiet", [False, True])
def test_long_stage_prints_one_line_unless_quiet(monkeypatch, capsys, quiet):
    monkeypatch.setattr(output, "LONG_WAIT_SECONDS", 0.2)
    with closing(Stages(quiet=quiet)) as stages:
        stages.begin("joining the swarm")
        time.sleep(0.5)
        stages.begin("loading tiny")
    assert capsys.readouterr() == ("" if quiet else "starting: joining the swarm\n", "")


def test_error_restores_the_terminal(paper):
    with pytest.raises(RuntimeError), closing(Stages()) as stages:
        stages.begin("loading tiny")
        raise RuntimeError
    hidden, shown = (paper.getvalue().rfind(f"\x1b[?25{end}") for end in "lh")
    assert shown > hidden >= 0, "the cursor is visible again"
    stages.close()


def test_duration_uses_a_suitable_unit():
    minutes = {119.0: "119 s", 120.0: "2 min", 720.0: "12 min", 7199.0: "120 min"}
    units = {0.2: "1 s", **minutes, 7200.0: "2 h", 172_800.0: "2 days"}
    assert {seconds: duration(seconds) for seconds in units} == units


def done(number, seconds):
    return replace(RECORD, round=number, seconds={"total": seconds})


def test_remaining_time_uses_the_mean_of_recent_rounds():
    remaining = Remaining(40)
    remaining.after(done(9, 10.0))
    assert remaining.after(done(10, 20.0)) == "about 8 min left"
    remaining = Remaining(200)
    remaining.after(done(1, 1e6))
    texts = [remaining.after(done(n, 6.0)) for n in range(2, ROUNDS + 2)]
    assert texts[-1] == f"about {duration((200 - ROUNDS - 1) * 6.0)} left"
    for limit, number in ((40, 40), (40, 41), (0, 10)):
        assert Remaining(limit).after(done(number, 10.0)) == "", "no estimate at or after the limit"
    assert Remaining(40).after(replace(RECORD, seconds={})) == ""


def test_panel_and_lines_show_time_left():
    shown = panel_of(done(10, 20.0), rounds=40)
    assert "10 of 40, about 10 min left, policy step 6" in shown
    lines = PlainLines(40, plain := Console(file=io.StringIO(), width=20))
    lines.write(done(10, 20.0))
    lines.write(done(40, 20.0))
    first, last = plain.file.getvalue().splitlines()
    assert first.endswith("| about 10 min left") and "left" not in last


def test_a_long_first_round_is_announced_without_a_terminal(monkeypatch):
    monkeypatch.setattr("node.monitor.live.say_if_long", notice := Mock())
    lines = PlainLines(0, Console(file=io.StringIO()))
    notice.assert_called_once_with("the first round has begun; swarm-node logs -f shows its phases")
    notice.return_value.cancel.assert_not_called()
    lines.write(RECORD)
    notice.return_value.cancel.assert_called()


def test_message_during_a_wait_gets_its_own_line():
    with TerminalJob("-c", SPEAKS) as job:
        shown = job.until("done")
        assert job.order("wait") == "exited 0"
    for line in ("aloud", LONG):
        assert shown.count(f"\x1b[2K{line}\r\n") == 2, "the line is whole, without a spinner"
