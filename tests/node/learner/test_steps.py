"""How an update is divided into optimizer steps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.steps import steps_of
from tests.node.learner.test_influence import HONEST, fat, hot
from tests.node.learner.test_learner import CONFIG, behaving, dated, group, weights
from tests.support import changed, random_policy

IN_FOURS = changed(CONFIG, groups_per_step=4)
GROUPS = [group(n, (0.0, 1.0, 0.5), own=n < 3) for n in range(8)]


def row(number: int, share: float = 0.125) -> Row:
    return Row((1,), (TrainingCompletion((2, 3), (True, True)),), (1.0,), True, share, number)


@given(rows=st.integers(1, 40), idle=st.integers(0, 4), least=st.integers(0, 12))
def test_every_row_is_in_one_step_and_no_step_has_fewer_than_are_asked_for(
    rows: int, idle: int, least: int
) -> None:
    steps = steps_of([row(n) for n in range(rows)], rows + idle, least)
    assert sorted(r.group for step in steps for r in step.rows) == list(range(rows))
    assert len(steps) == (max(1, rows // least) if least else 1)
    sizes = [len(step.rows) for step in steps]
    assert len(steps) == 1 or least <= min(sizes) <= max(sizes) <= min(sizes) + 1
    assert math.fsum(step.weight for step in steps) == pytest.approx(1.0)
    assert math.fsum(step.groups for step in steps) == pytest.approx(rows + idle)


@given(rows=st.integers(1, 40), least=st.integers(0, 12))
def test_the_mean_of_the_steps_is_the_update_however_they_are_cut(rows: int, least: int) -> None:
    steps = steps_of([row(n) for n in range(rows)], rows, least)
    counted = {r.group: r.share / len(steps) for step in steps for r in step.rows}
    assert counted == pytest.approx(dict.fromkeys(range(rows), 0.125))


def test_an_update_of_eight_groups_is_two_updates_of_four() -> None:
    in_one, in_two = random_policy(), random_policy()
    stats = Learner(in_one, IN_FOURS).update(GROUPS)
    apart = Learner(in_two, CONFIG)
    halves = [apart.update(GROUPS[0::2]), apart.update(GROUPS[1::2])]
    torch.testing.assert_close(weights(in_one), weights(in_two))
    assert in_one.version == in_two.version == 2
    assert stats.tokens_trained == sum(half.tokens_trained for half in halves)
    assert stats.loss == pytest.approx(sum(half.loss for half in halves) / 2)
    assert stats.grad_norm == pytest.approx(sum(half.grad_norm for half in halves) / 2)
    useful = dict(zip([4, 6, 3, 5, 7], halves[0].useful + halves[1].useful, strict=True))
    assert stats.useful == pytest.approx([useful[n] for n in (3, 4, 5, 6, 7)])


@pytest.mark.parametrize(("informative", "least", "steps"), [(7, 4, 1), (8, 4, 2), (8, 0, 1)])
def test_steps_are_as_many_as_whole_parts_of_what_teaches(
    informative: int, least: int, steps: int
) -> None:
    policy = random_policy()
    idle = [group(20 + n, (1.0, 1.0)) for n in range(5)]
    config = changed(CONFIG, groups_per_step=least)
    Learner(policy, config).update([*idle, *GROUPS[:informative]])
    assert policy.version == steps


def test_every_epoch_goes_through_all_steps_again() -> None:
    policy = random_policy()
    stats = Learner(policy, changed(IN_FOURS, epochs=3, lr=1e-5)).update(GROUPS)
    assert policy.version == 6
    assert (stats.skipped, stats.refused) == (False, 0)


@pytest.mark.parametrize("intruder", [fat(), hot()], ids=["fat", "hot"])
def test_no_external_group_has_more_than_twice_its_part_of_an_update_in_steps(
    intruder: TrainingGroup,
) -> None:
    stats = Learner(random_policy(), IN_FOURS).update([*HONEST, intruder])
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6


def test_a_step_that_is_refused_ends_the_update_and_leaves_those_before_it() -> None:
    policy = random_policy()
    learner = Learner(policy, IN_FOURS)
    norms = iter([1.0, math.nan])
    learner.optimizer.clip = lambda: torch.tensor(next(norms))
    stats = learner.update(GROUPS)
    assert (stats.skipped, stats.refused, policy.version) == (False, 1, 1)


def test_own_tokens_that_a_later_step_reads_are_told_as_older() -> None:
    policy = random_policy()
    policy.version = 5
    groups = dated(behaving([group(n, (0.0, 1.0, 0.5)) for n in range(8)], 0.0), 5)
    stats = Learner(policy, IN_FOURS).update(groups)
    read_in = [sum(len(c.ids) for g in groups[part::2] for c in g.completions) for part in (0, 1)]
    assert list(stats.staleness) == read_in
    assert stats.engine_gap == pytest.approx(0.0, abs=1e-5), "of what the first step reads alone"
