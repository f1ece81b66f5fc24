"""Which turns are left out, and that nothing else changes with them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.config.registry import LOSSES
from node.learner.batches import TrainingCompletion
from node.learner.learner import Learner
from node.learner.update_rows import turns_of, undecided
from tests.node.learner.test_learner import CONFIG, MIXED, gradient_of
from tests.node.learner.trajectories import played, trajectory
from tests.support import changed, random_policy

GROUP = played([3, 2, 1, 4], [1.0, 0.0, 0.5, 0.0])
KEPT = changed(CONFIG, turns_kept=0.6)


def estimates(completion: TrainingCompletion) -> list[float]:
    """Of each turn, nats."""
    mu = completion.behaviour
    assert mu is not None
    return [-fmean(mu[place]) for place in turns_of(completion.trained)]


@given(
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=6).filter(lambda each: max(each) > 1),
    share=st.floats(0.05, 0.99),
    seed=st.integers(0, 99),
)
def test_of_a_groups_turns_the_most_undecided_are_kept(
    lengths: list[int], share: float, seed: int
) -> None:
    done = played(lengths, [0.0] * len(lengths), seed=seed).completions
    left = undecided(done, share)
    before = sorted((each for c in done for each in estimates(c)), reverse=True)
    after = sorted((each for c in left for each in estimates(c)), reverse=True)
    assert after == before[: math.ceil(share * len(before) - 1e-9)]
    for own, other in zip(done, left, strict=True):
        assert replace(other, trained=own.trained) == own, "nothing but the mask changes"


def test_a_share_of_one_keeps_everything_and_so_do_answers_of_one_turn() -> None:
    assert undecided(GROUP.completions, 1.0) is GROUP.completions
    answers = played([1, 1, 1], [0.0, 1.0, 0.0]).completions
    assert undecided(answers, 0.1) is answers


def test_of_turns_that_are_equally_undecided_the_earlier_ones_are_kept() -> None:
    even = tuple(replace(c, behaviour=(-1.0,) * len(c.ids)) for c in GROUP.completions)
    left = undecided(even, 0.5)
    assert [len(turns_of(c.trained)) for c in left] == [3, 2, 0, 0]
    assert turns_of(undecided(even, 0.4)[1].trained) == turns_of(even[1].trained)[:1]


def test_turns_whose_log_probs_are_unknown_are_kept_beside_the_most_undecided_others() -> None:
    silent = trajectory(7, 3, known=False)
    left = undecided((*GROUP.completions, silent), 0.3)
    assert left[-1] == silent
    assert [c.trained for c in left[:-1]] == [c.trained for c in undecided(GROUP.completions, 0.3)]


@pytest.mark.parametrize("loss", LOSSES.own)
def test_at_a_share_of_one_and_for_answers_of_one_turn_the_update_is_the_same_to_the_bit(
    loss: str,
) -> None:
    plain, kept = (changed(each, loss=loss) for each in (CONFIG, KEPT))
    whole = changed(kept, turns_kept=1.0)
    assert torch.equal(gradient_of([GROUP], whole), gradient_of([GROUP], plain))
    assert torch.equal(gradient_of(MIXED, kept), gradient_of(MIXED, plain))


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "cispo"])
def test_what_is_left_out_takes_its_gradient_with_it_and_leaves_that_of_the_rest(loss: str) -> None:
    """Left out and kept, each with the others masked, add up to the whole."""
    plain, kept = (changed(each, loss=loss) for each in (CONFIG, KEPT))
    left = undecided(GROUP.completions, 0.6)
    rest = tuple(
        replace(c, trained=tuple(a and not b for a, b in zip(c.trained, d.trained, strict=True)))
        for c, d in zip(GROUP.completions, left, strict=True)
    )
    total = sum(sum(c.trained) for c in GROUP.completions)
    outside = sum(sum(c.trained) for c in rest)
    scale = 1.0 if loss == "dr_grpo" else outside / total
    without = gradient_of([replace(GROUP, completions=rest)], plain) * scale
    torch.testing.assert_close(
        gradient_of([GROUP], kept) + without, gradient_of([GROUP], plain), atol=1e-6, rtol=1e-4
    )


def test_a_turn_that_is_left_out_counts_in_the_mean_over_its_group() -> None:
    (few,), (every,) = (Learner(random_policy(), each).rows([GROUP]) for each in (KEPT, CONFIG))
    assert few.share == every.share
    assert sum(sum(c.trained) for c in few.completions) < sum(
        sum(c.trained) for c in every.completions
    )


def test_credits_of_turns_that_are_kept_are_as_if_all_were() -> None:
    every = changed(CONFIG, turn_credit=0.5)
    (few,), (whole,) = (
        Learner(random_policy(), each).rows([GROUP])
        for each in (changed(every, turns_kept=0.6), every)
    )
    told = dict(zip((c.ids for c in whole.completions), whole.credits, strict=True))
    assert list(few.credits) == [told[c.ids] for c in few.completions]


def test_entropies_are_told_only_of_groups_that_were_read_whole() -> None:
    whole = Learner(random_policy(), CONFIG).update([GROUP]).entropies[0]
    assert [len(each) for each in whole] == [sum(c.trained) for c in GROUP.completions]
    even = tuple(replace(c, behaviour=(-1.0,) * len(c.ids)) for c in GROUP.completions)
    cut = replace(GROUP, completions=even)
    told = Learner(random_policy(), changed(CONFIG, turns_kept=0.5)).update([cut]).entropies
    assert told == (((),) * 4,)


def test_a_group_of_which_every_turn_is_left_out_is_not_read() -> None:
    """Of others' answers the better ones alone are read, and these were the surest."""
    sure = played([2, 1], [1.0, 0.0], own=False)
    mu = [(-0.1,) * len(sure.completions[0].ids), (-3.0,) * len(sure.completions[1].ids)]
    done = tuple(replace(c, behaviour=b) for c, b in zip(sure.completions, mu, strict=True))
    learner = Learner(random_policy(), changed(CONFIG, turns_kept=0.3), correction="better")
    stats = learner.update([replace(sure, completions=done)])
    assert stats.skipped and stats.useful == (0.0,)
