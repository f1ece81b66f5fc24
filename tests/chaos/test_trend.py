"""Growth is told from noise."""

from __future__ import annotations

import random

import pytest

from tests.chaos.evidence import Evidence
from tests.chaos.soak import Growth, grown
from tests.chaos.trend import slope, thirds

TIMES = [float(second) for second in range(0, 3600, 30)]


def test_the_slope_of_a_line_is_found_among_outliers() -> None:
    rng = random.Random(0)
    values = [2.0 * time + rng.gauss(0, 5) for time in TIMES]
    for place in rng.sample(range(len(values)), len(values) // 5):
        values[place] += 1e6
    assert slope(TIMES, values) == pytest.approx(2.0, rel=0.05)


def test_noise_about_a_level_has_no_slope() -> None:
    rng = random.Random(1)
    assert abs(slope(TIMES, [rng.gauss(100, 5) for _ in TIMES])) < 0.002


def test_thirds_compare_the_ends() -> None:
    assert thirds([0, 1, 2, 3, 4, 5], [1, 1, 9, 9, 3, 3]) == (1, 3)
    with pytest.raises(ValueError, match="longer"):
        thirds([], [])


@pytest.mark.parametrize("figure", [None, "memory", "fds", "sockets", "threads", "folder"])
def test_a_soak_names_what_grows_and_in_which_node(tmp_path, figure: str | None) -> None:
    evidence = Evidence(tmp_path / "evidence.sqlite")
    names = ("memory", "fds", "sockets", "threads", "folder")
    for node in ("node-1", "node-2"):
        for time in TIMES:
            growing = figure if node == "node-2" else None
            values = (50.0 + (time / 60.0) * (name == growing) for name in names)
            evidence.add("samples", (time, node, time, *values, 1.0))
    found = {result.name.split()[0]: result.violations for result in grown(evidence)}
    assert set(found) == set(names)
    for name, violations in found.items():
        assert len(violations) == (name == figure)
        assert all("node-2" in each for each in violations)


def test_a_soak_in_which_nothing_was_sampled_has_shown_nothing(tmp_path) -> None:
    assert all(result.violations for result in grown(Evidence(tmp_path / "evidence.sqlite")))


def test_a_short_soak_does_not_take_the_filling_of_caches_for_growth() -> None:
    assert not Growth(rate=36.0, hours=0.25).exceeds("memory")
    assert Growth(rate=36.0, hours=1.8).exceeds("memory")
    assert not Growth(rate=20.0, hours=100.0).exceeds("memory")
