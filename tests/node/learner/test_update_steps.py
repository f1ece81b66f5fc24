"""Which steps an update makes, and what it tells of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.share import Share
from node.learner.update_stats import UpdateStats
from tests.node.learner.test_learner import CONFIG, MIXED, group, weights
from tests.node.learner.test_token_budget import cramped_policy
from tests.support import changed, random_policy

EXTERNAL = [group(4, (0.0, 1.0), own=False), group(5, (1.0, 1.0), own=False)]


def norms(learner: Learner, *values: float) -> None:
    """Let gradients have these norms, whatever they are."""
    left = iter(values)
    learner.optimizer.clip = lambda: torch.tensor(next(left))


class Boundless(Share):
    """Of an update whose loss is beyond all numbers."""

    def sum(self, value: Tensor) -> Tensor:
        return value * math.inf


def single(rewards: tuple[float, ...]) -> TrainingGroup:
    """A group of completions of one token each, no two of which are the same."""
    done = tuple(TrainingCompletion((n,), (True,)) for n, _ in enumerate(rewards))
    return TrainingGroup((90,), done, rewards, own=True)


def test_without_a_gradient_no_step_is_made() -> None:
    policy = random_policy()
    before = weights(policy)
    learner = Learner(policy, CONFIG)
    norms(learner, 0.0)
    stats = learner.update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (True, 0, 0)
    assert torch.equal(weights(policy), before)


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_refused_however_finite_the_loss(norm: float) -> None:
    policy = random_policy()
    before = weights(policy)
    learner = Learner(policy, CONFIG)
    norms(learner, norm)
    stats = learner.update(MIXED)
    assert math.isfinite(stats.loss)
    assert (stats.skipped, stats.refused, policy.version) == (True, 1, 0)
    assert torch.equal(weights(policy), before)


def test_a_loss_that_is_not_finite_is_refused_however_finite_the_gradient() -> None:
    policy = random_policy()
    learner = Learner(policy, CONFIG, Boundless())
    norms(learner, 1.0)
    stats = learner.update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (True, 1, 0)


def test_an_update_that_is_refused_in_its_second_step_has_made_one() -> None:
    policy = random_policy()
    learner = Learner(policy, changed(CONFIG, epochs=3))
    norms(learner, 1.0, math.nan)
    stats = learner.update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (False, 1, 1)


def test_loss_and_gradient_are_told_of_the_first_epoch_and_tokens_are_counted_once() -> None:
    one, two = (
        Learner(random_policy(), changed(CONFIG, epochs=epochs, lr=0.05)).update(
            [*MIXED, *EXTERNAL]
        )
        for epochs in (1, 2)
    )
    first = ("loss", "grad_norm", "tokens_trained", "entropy", "largest_share", "groups_bounded")
    assert [getattr(one, name) for name in first] == pytest.approx(
        [getattr(two, name) for name in first]
    )
    assert one.clip_fraction == 0.0 < two.clip_fraction, "the second is held to where it began"


def test_the_rate_that_is_told_is_that_of_the_last_step() -> None:
    learner = Learner(random_policy(), changed(CONFIG, epochs=2, warmup_steps=4))
    assert learner.update(MIXED).lr == pytest.approx(CONFIG.lr / 2)
    idle = learner.update([group(9, (1.0, 1.0))])
    assert idle.skipped and idle.lr == learner.optimizer.lr > 0.0


def test_use_is_told_of_external_groups_in_their_order_and_of_no_other() -> None:
    learner = Learner(random_policy(), CONFIG)
    stats = learner.update([MIXED[0], EXTERNAL[1], MIXED[1], EXTERNAL[0]])
    assert len(stats.useful) == 2 and stats.useful[0] == 0.0
    assert stats.groups_external == 1
    same = [replace(each, rewards=(1.0,) * len(each.rewards)) for each in [*MIXED, *EXTERNAL]]
    assert learner.update(same).useful == (0.0, 0.0)


@pytest.mark.parametrize(
    ("rewards", "falling"), [((1.0, 0.0, 0.0, 0.0), 3), ((0.0, 1.0, 1.0, 1.0), 1)]
)
def test_the_trust_region_has_the_sides_of_the_configuration(rewards, falling) -> None:
    for low, high, left in ((0.0, 1e9, falling), (1.0, 0.0, 4 - falling)):
        config = changed(CONFIG, epochs=2, lr=0.01, clip_low=low, clip_high=high)
        stats = Learner(random_policy(), config).update([single(rewards)])
        assert stats.clip_fraction == left / 8, "nothing has left it in the first of two epochs"


def test_what_was_added_before_memory_ran_out_is_not_added_twice() -> None:
    long = replace(group(7, (1.0, 0.0)), prompt_ids=tuple(range(1, 41)))
    config = changed(CONFIG, micro_batch_tokens=2 * 48)
    sizes: list[int] = []

    def updated(room: int) -> UpdateStats:
        policy = cramped_policy(room)
        policy.model.register_forward_pre_hook(
            lambda model, arguments, given: sizes.append(given["input_ids"].numel()),
            with_kwargs=True,
        )
        return Learner(policy, config).update([*MIXED, long])

    usual = updated(1 << 30)
    assert sizes[0] < max(sizes), "the first of its micro-batches is read before memory runs out"
    stats = updated(max(sizes) - 1)
    assert stats.halved > 0
    for figure in ("tokens_trained", "loss", "grad_norm"):
        assert getattr(stats, figure) == pytest.approx(getattr(usual, figure), rel=1e-3), figure
