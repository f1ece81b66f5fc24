import io
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.monitor.history import ENDINGS, MEASURES, Curve, draw_runs, run_table, window_for
from node.monitor.record import BARS, PLAIN_BARS, Terminal
from tests.node.monitor.test_monitor import RECORD, rounds

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
PLAIN_TEXT = matplotlib.rc_context({"svg.fonttype": "none"})
CLIMB = [replace(RECORD, round=n + 1, reward_local=n / 7) for n in range(8)]
"""Rounds whose local reward rises from 0 to 1, one bar height per round."""


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40, unique=True).map(sorted),
    st.integers(1, 30),
)
def test_smoothed_value_is_the_mean_of_the_window(numbers, window):
    points = [(n, float(n * n % 17)) for n in numbers]
    smooth = Curve.of(points).smoothed(window)
    assert list(smooth.rounds) == numbers
    for number, value in zip(numbers, smooth.values, strict=True):
        near = [v for n, v in points if -window / 2 < n - number <= window / 2]
        assert value == pytest.approx(sum(near) / len(near))


def test_curve_interpolates_only_between_measurements():
    curve = Curve.of([(2, 1.0), (4, 3.0)])
    assert curve.at(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == [None, 1.0, 2.0, 3.0, None]
    assert Curve.of([]).smoothed(9).at(np.array([1.0])) == [None]
    measures = {each.title: each for each in MEASURES}
    history = [replace(RECORD, round=n, reward_eval=0.5 if n == 3 else None) for n in range(1, 5)]
    curve = Curve.measured(measures["reward, held-out"], history)
    assert (list(curve.rounds), list(curve.values)) == ([3.0], [0.5])
    share = measures["peer share"]
    assert share.of(RECORD) == 3 / 8, "share of all groups in the update"
    assert share.of(replace(RECORD, groups_local=0, groups_external=0)) is None


def test_longest_run_sets_the_smoothing_window():
    assert window_for([rounds(10)]) == 1 and window_for([rounds(10), rounds(400)]) == 20


@pytest.mark.parametrize("ending", ENDINGS)
def test_chart_format_follows_the_file_extension(tmp_path, ending):
    path = tmp_path / f"chart{ending}"
    draw_runs({"run": rounds(30)}, 1, path)
    assert path.read_bytes().startswith(MAGIC[ending])


@PLAIN_TEXT
def test_chart_names_every_run_and_shows_each_measure(tmp_path):
    names = ["cost $5_{", "_hidden", *(f"node-{n}" for n in range(12))]
    path = tmp_path / "chart.svg"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_runs(dict.fromkeys(names, rounds(5)), 3, path)
    shown = path.read_text(encoding="utf-8")
    for name in ("cost $5_{", "./_hidden", *names[2:]):
        assert f">{name}<" in shown
    assert "mean of 3 rounds" in shown
    runs = {"a": rounds(5)}
    for evaluated in (False, True):
        draw_runs(runs, 1, path)
        shown = path.read_text(encoding="utf-8")
        assert "reward, local" in shown and ("held-out" in shown) == evaluated
        runs["b"] = [replace(RECORD, reward_eval=0.5)]


def drawn(runs, width, *, encoding="utf-8"):
    """Return the lines of a table in a terminal with ``width`` columns."""
    terminal = Terminal()
    terminal.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    terminal.width = width
    terminal.print_table(run_table(runs, 1, terminal))
    terminal.file.seek(0)
    return terminal.file.read().splitlines()


def line_of(lines, start):
    return next(line for line in lines if line.strip(" |").startswith(start))


def test_table_draws_bars_and_figures_or_an_empty_line():
    shown = line_of(drawn({"run": CLIMB}, 100), "reward, local")
    assert shown.split() == ["reward,", "local", BARS, "0.000", "1.000", "1.000"]
    shown = line_of(drawn({"run": rounds(3)}, 100), "reward, held-out")
    assert shown.split() == ["reward,", "held-out"]
    lines = drawn({"run": CLIMB}, 100, encoding="latin-1")
    assert PLAIN_BARS in line_of(lines, "reward, local") and "\n".join(lines).isascii()


def test_runs_share_the_rounds_and_the_scale():
    lines = drawn({"long": CLIMB, "half": CLIMB[:4]}, 100)
    assert "rounds 1 to 8" in lines[1] and BARS in line_of(lines, "reward, local")
    second = lines[lines.index(line_of(lines, "reward, local")) + 1]
    name, bars, *figures = second.split()
    assert (name, figures) == ("half", ["0.000", "0.429", "0.429"])
    assert bars == BARS[:4]


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    lines = drawn({"first": rounds(500), "a name " * 20: rounds(300)}, width)
    assert max(map(len, lines)) <= width and len([line for line in lines if BARS[-1] in line]) >= 2


def test_narrow_table_keeps_whole_names_and_figures():
    lines = drawn({"first": CLIMB, "second-run": CLIMB}, 40)
    first = line_of(lines, "reward, local")
    assert first.split() == ["reward,", "local", "first", BARS, "0.000", "1.000", "1.000"]
    assert "second-run" in lines[lines.index(first) + 1]
