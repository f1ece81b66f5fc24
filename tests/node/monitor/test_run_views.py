"""Runs as a chart and as lines of bars."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from node.monitor.history import ENDINGS, draw_runs, run_table
from node.monitor.record import BARS, PLAIN_BARS, RoundRecord
from node.monitor.terminal import Terminal
from tests.node.monitor.test_monitor import RECORD, rounds

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_chart_is_written_in_the_format_of_its_ending(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"chart{ending}"
    draw_runs({"run": rounds(30)}, 1, path)
    assert path.read_bytes().startswith(MAGIC[ending])


def written_in(path: Path) -> str:
    """What stands in a chart, as text."""
    return path.read_text(encoding="utf-8")


def test_a_chart_names_every_run_as_it_is_called(tmp_path: Path) -> None:
    names = ["cost $5_{", "_hidden", *(f"node-{n}" for n in range(12))]
    with matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_runs(dict.fromkeys(names, rounds(5)), 3, path := tmp_path / "chart.svg")
    shown = written_in(path)
    for name in ("cost $5_{", "./_hidden", *names[2:]):
        assert f">{name}<" in shown
    assert "mean of 3 rounds" in shown


def test_a_chart_has_a_panel_for_what_any_run_measured(tmp_path: Path) -> None:
    evaluated = [replace(RECORD, reward_eval=0.5)]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_runs({"a": rounds(5)}, 1, alone := tmp_path / "alone.svg")
        draw_runs({"a": rounds(5), "b": evaluated}, 1, both := tmp_path / "both.svg")
    assert "reward, own" in written_in(alone) and "held-out" not in written_in(alone)
    assert "held-out" in written_in(both)


def drawn(runs: dict[str, list[RoundRecord]], width: int, *, encoding: str = "utf-8") -> list[str]:
    """The lines of a table in a terminal of so many columns."""
    terminal = Terminal()
    terminal.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    terminal.width = width
    terminal.print_table(run_table(runs, 1, terminal))
    terminal.file.seek(0)
    return terminal.file.read().splitlines()


def climb() -> list[RoundRecord]:
    """Rounds whose own reward goes from 0 to 1, a bar at a time."""
    return [replace(RECORD, round=n + 1, reward_own=n / 7) for n in range(8)]


def line_of(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.strip(" |").startswith(start))


def test_a_run_is_drawn_as_bars_with_its_ends_beside_them() -> None:
    shown = line_of(drawn({"run": climb()}, 100), "reward, own")
    assert shown.split() == ["reward,", "own", BARS, "0.000", "1.000", "1.000"]


def test_runs_share_the_rounds_and_the_scale() -> None:
    lines = drawn({"long": climb(), "half": climb()[:4]}, 100)
    assert "rounds 1 to 8" in lines[1]
    assert BARS in line_of(lines, "reward, own")
    behind = lines[lines.index(line_of(lines, "reward, own")) + 1]
    name, bars, *figures = behind.split()
    assert (name, figures) == ("half", ["0.000", "0.429", "0.429"])
    assert bars == BARS[:4]


def test_an_encoding_without_the_bars_gets_plain_ones() -> None:
    lines = drawn({"run": climb()}, 100, encoding="latin-1")
    assert PLAIN_BARS in line_of(lines, "reward, own")
    assert "\n".join(lines).isascii()


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = drawn({"first": rounds(500), "a name " * 20: rounds(300)}, width)
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if BARS[-1] in line]) >= 2


def test_a_narrow_terminal_gets_whole_figures_and_names_in_wider_lines() -> None:
    lines = drawn({"first": climb(), "second-run": climb()}, 40)
    first = line_of(lines, "reward, own")
    assert first.split() == ["reward,", "own", "first", BARS, "0.000", "1.000", "1.000"]
    assert "second-run" in lines[lines.index(first) + 1]


def test_a_measure_that_nobody_took_has_an_empty_line() -> None:
    shown = line_of(drawn({"run": rounds(3)}, 100), "reward, held-out")
    assert shown.split() == ["reward,", "held-out"]
