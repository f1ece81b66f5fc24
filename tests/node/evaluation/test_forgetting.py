"""When a policy counts as forgetting."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.evaluation.evaluator import ForgettingAlarm
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef

GOOD = (1.0,) * 24 + (0.0,) * 40
POOR = (1.0,) * 4 + (0.0,) * 60
TASKS = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(64)]


def alarms(*evaluations: Sequence[float]) -> list[bool]:
    alarm = ForgettingAlarm(Counters(), TASKS)
    return [alarm.look(rewards) for rewards in evaluations]


def test_a_fall_that_stays_is_told_once() -> None:
    counters = Counters()
    alarm = ForgettingAlarm(counters, TASKS)
    assert [alarm.look(r) for r in (GOOD, POOR, POOR, POOR)] == [False, False, True, False]
    assert counters.snapshot() == {"forgetting_alarms": 1}


@pytest.mark.parametrize(("tasks", "alarms"), [(TASKS, True), (TASKS[::-1], False)])
def test_a_fall_across_a_restart_is_told_where_the_tasks_are_the_same(tasks, alarms) -> None:
    before, after = ForgettingAlarm(Counters(), TASKS), ForgettingAlarm(Counters(), tasks)
    assert not any(before.look(rewards) for rewards in (GOOD, POOR))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.look(POOR) == alarms


@pytest.mark.parametrize("restarted", [False, True])
def test_looking_at_the_same_policy_again_is_no_further_evidence(restarted: bool) -> None:
    alarm = ForgettingAlarm(Counters(), TASKS)
    assert not any(alarm.look(each, version) for each, version in ((GOOD, 0), (POOR, 7), (POOR, 7)))
    if restarted:
        state = json.loads(json.dumps(alarm.state_dict()))
        alarm = ForgettingAlarm(Counters(), TASKS)
        alarm.load_state_dict(state)
    assert not alarm.look(POOR, 7)
    assert alarm.look(POOR, 8)


def test_a_single_bad_evaluation_is_no_alarm() -> None:
    assert not any(alarms(GOOD, POOR, GOOD, POOR, GOOD))


def test_a_policy_that_recovered_and_falls_again_is_told_again() -> None:
    assert sum(alarms(GOOD, POOR, POOR, GOOD, POOR, POOR)) == 2


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_a_policy_that_stays_as_it_is_never_alarms(rewards: list[float]) -> None:
    assert not any(alarms(*[rewards] * 5))


def test_chance_alone_alarms_less_than_once_in_a_thousand_evaluations() -> None:
    rng = random.Random(0)
    solve = [rng.choice((0.0, 0.1, 0.5, 0.9)) for _ in range(64)]
    runs = [[[float(rng.random() < p) for p in solve] for _ in range(40)] for _ in range(100)]
    assert sum(any(alarms(*run)) for run in runs) <= 4
