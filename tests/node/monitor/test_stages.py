"""What a node says while it starts."""

from __future__ import annotations

import io
import logging
from contextlib import closing

import pytest

from node.monitor import live as module
from node.monitor.live import Stages
from node.monitor.terminal import Terminal


class Paper(io.StringIO):
    """Keeps what is drawn."""

    def isatty(self) -> bool:
        return True


class Screen(Terminal):
    """A terminal that keeps what is drawn on it."""

    def __init__(self) -> None:
        super().__init__()
        self.file, self.is_interactive = Paper(), True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm")
    made = Screen()
    monkeypatch.setattr(module, "Terminal", lambda: made)
    return made


def drawn(screen: Screen) -> str:
    return screen.file.getvalue()


def test_each_stage_is_drawn_at_once_and_stands_in_the_log(screen: Screen, caplog) -> None:
    caplog.set_level(logging.INFO)
    with closing(Stages()) as stages:
        stages.begin("joining the swarm")
        stages.begin("loading tiny")
    assert "starting: joining the swarm" in drawn(screen)
    assert "starting: loading tiny" in drawn(screen)
    assert caplog.messages == ["start: joining the swarm", "start: loading tiny"]


def test_nothing_is_drawn_where_json_is_printed_or_nobody_looks(screen: Screen, caplog) -> None:
    caplog.set_level(logging.INFO)
    with closing(Stages(quiet=True)) as stages:
        stages.begin("loading tiny")
    assert drawn(screen) == ""
    assert caplog.messages == ["start: loading tiny"]


def test_an_error_gives_the_terminal_back(screen: Screen) -> None:
    with pytest.raises(RuntimeError), closing(Stages()) as stages:
        stages.begin("loading tiny")
        raise RuntimeError
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert drawn(screen).rfind(shown) > drawn(screen).rfind(hidden) >= 0, "the cursor is back"
    stages.close()
