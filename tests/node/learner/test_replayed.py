"""What an answer of before weighs in an own group."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from node.learner.batches import TrainingGroup
from node.learner.learner import Learner
from tests.node.learner.test_learner import CONFIG, EVEN, behaving, dated, gradient_of, group
from tests.support import changed, random_policy

PLAIN = changed(CONFIG, loss="dr_grpo")
"""Its denominator is the same whatever is trained on."""
FRESH = group(1, (0.0, 0.0, 1.0))


def given(shift: float | None) -> TrainingGroup:
    """The group, its last answer replayed, of a policy with log-probs so far below this one's."""
    (moved,) = behaving([FRESH], shift or 0.0)
    last = moved.completions[-1]
    last = replace(last, replayed=True, behaviour=None if shift is None else last.behaviour)
    return replace(FRESH, completions=(*FRESH.completions[:-1], last))


def alone(each: TrainingGroup) -> TrainingGroup:
    """The last answer, with the others masked."""
    done = [replace(c, trained=(False,) * len(c.ids)) for c in each.completions[:-1]]
    return replace(each, completions=(*done, each.completions[-1]))


@pytest.mark.parametrize(("shift", "weight"), [(-0.5, 0.6065), (0.0, 1.0), (3.0, 1.0), (None, 1.0)])
@pytest.mark.parametrize("settings", [{}, {"correction": "tis"}, {"decoupled": True}])
def test_it_weighs_as_importance_says_and_never_more_than_the_own_ones(
    shift: float | None, weight: float, settings: dict[str, object]
) -> None:
    whole, last = gradient_of([FRESH], PLAIN), gradient_of([alone(FRESH)], PLAIN)
    fresh = [replace(c, behaviour=None) for c in FRESH.completions[:-1]]
    asked = given(shift)
    asked = replace(asked, completions=(*fresh, asked.completions[-1]))
    torch.testing.assert_close(
        gradient_of([asked], PLAIN, **settings),
        whole - (1 - weight) * last,
        atol=1e-5,
        rtol=1e-3,
    )


def test_by_default_it_is_learned_as_far_as_this_policy_might_have_written_it() -> None:
    even = gradient_of([FRESH], PLAIN, EVEN)
    found = gradient_of([given(None)], PLAIN, EVEN, correction="better")
    torch.testing.assert_close(found, even, atol=1e-5, rtol=1e-3)
    peaked = gradient_of([given(None)], PLAIN, 1.0, correction="better")
    assert not torch.allclose(peaked, gradient_of([FRESH], PLAIN, 1.0))


def test_it_tells_nothing_of_the_engine_nor_of_the_policys_age() -> None:
    policy = random_policy()
    policy.version = 3
    (fresh,) = dated(behaving([FRESH], 0.0), 3)
    far = replace(given(5.0).completions[-1], versions=None)
    stats = Learner(policy, CONFIG).update(
        [replace(fresh, completions=(*fresh.completions[:-1], far))]
    )
    assert stats.engine_gap < 1e-5
    assert stats.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert sum(stats.staleness) == sum(len(c.ids) for c in fresh.completions[:-1])
    assert stats.entropies[0][-1] == () and all(stats.entropies[0][:-1])


def test_it_stays_what_it_is_when_it_is_cut() -> None:
    assert given(0.0).completions[-1].first(1).replayed
