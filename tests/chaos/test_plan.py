"""Events follow from the seed, are bounded, and leave a heal the time to be measured."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.plan import HEALING, LONGEST_PAUSE, SETTLING, WARM_UP, dose_of, draw


@pytest.mark.parametrize("minutes", [3, 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_plan_follows_from_its_seed_and_keeps_its_bounds(seed: int, minutes: int) -> None:
    seconds, dose = 60.0 * minutes, dose_of(60.0 * minutes, 8)
    events = draw(seed, seconds, 8, dose, disk_node=0)
    assert events == draw(seed, seconds, 8, dose, disk_node=0)
    assert events != draw(seed + 1, seconds, 8, dose, disk_node=0)
    counts = Counter(event.kind for event in events)
    assert all(counts[kind] == getattr(dose, kind) > 0 for kind in counts)
    assert len(counts) == 10
    for event in events:
        assert event.at >= WARM_UP and event.at + event.seconds < seconds
        assert event.seconds <= LONGEST_PAUSE
        assert event.node == (-1 if event.kind == "partition" else event.node)
        assert event.kind != "disk" or event.node == 0


def test_nothing_else_happens_while_a_heal_is_measured() -> None:
    events = draw(3, 1200.0, 8, dose_of(1200.0, 8), disk_node=0)
    heals = [event.at + event.seconds for event in events if event.kind == "partition"]
    others = [event for event in events if event.kind != "partition"]
    assert len(heals) >= 2
    for heal in heals:
        for event in others:
            before = event.at + event.seconds < heal - SETTLING
            assert before or event.at > heal + HEALING


def test_twenty_minutes_hold_more_than_a_hundred_kills() -> None:
    dose = dose_of(1200.0, 8)
    assert dose.kill + dose.young >= 120
