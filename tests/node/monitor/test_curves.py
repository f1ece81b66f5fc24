"""A curve says what the rounds around each point say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.monitor.history import MEASURES, Curve, window_for
from tests.node.monitor.test_monitor import RECORD, rounds


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40, unique=True).map(sorted),
    st.integers(1, 30),
)
def test_a_smoothed_value_is_the_mean_of_what_was_measured_in_the_rounds_around(numbers, window):
    points = [(n, float(n * n % 17)) for n in numbers]
    smooth = Curve.of(points).smoothed(window)
    assert list(smooth.rounds) == numbers
    for number, value in zip(numbers, smooth.values, strict=True):
        near = [v for n, v in points if -window / 2 < n - number <= window / 2]
        assert value == pytest.approx(sum(near) / len(near))


def test_a_curve_has_no_value_outside_of_what_was_measured():
    curve = Curve.of([(2, 1.0), (4, 3.0)])
    assert curve.at(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == [None, 1.0, 2.0, 3.0, None]
    empty = Curve.of([])
    assert empty.smoothed(9).at(np.array([1.0])) == [None]


def test_rounds_without_a_value_are_no_zeros():
    history = [replace(RECORD, round=n, reward_eval=0.5 if n == 3 else None) for n in range(1, 5)]
    heldout = next(m for m in MEASURES if m.title == "reward, held-out")
    curve = Curve.measured(heldout, history)
    assert (list(curve.rounds), list(curve.values)) == ([3.0], [0.5])


def test_the_external_share_is_of_all_groups_of_the_update():
    share = next(m for m in MEASURES if m.title == "external share")
    assert share.of(RECORD) == 3 / 8
    assert share.of(replace(RECORD, groups_own=0, groups_external=0)) is None


def test_the_longest_run_decides_how_much_is_smoothed():
    assert window_for([rounds(10)]) == 1
    assert window_for([rounds(10), rounds(400)]) == 20
