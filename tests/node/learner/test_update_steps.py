"""Which steps an update makes, and what it tells of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace

import pytest
import torch
from torch import Tensor

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.micro_batching import UpdateShare
from node.learner.update_stats import UpdateStats
from node.policy.policy import Policy
from tests.node.learner.test_learner import CONFIG, MIXED, behaving, dated, group, weights
from tests.node.learner.test_token_budget import cramped_policy
from tests.support import changed, lone_logprobs, random_policy

EXTERNAL = [group(4, (0.0, 1.0), own=False), group(5, (1.0, 1.0), own=False)]


def norms(learner: Learner, *values: float) -> None:
    """Let gradients have these norms, whatever they are."""
    left = iter(values)
    learner.optimizer.clip = lambda: torch.tensor(next(left))


class Boundless(UpdateShare):
    """Of an update whose loss is beyond all numbers."""

    def sum(self, value: Tensor) -> Tensor:
        return value * math.inf


def single(rewards: tuple[float, ...]) -> TrainingGroup:
    """A group of completions of one token each, no two of which are the same."""
    done = tuple(TrainingCompletion((n,), (True,)) for n, _ in enumerate(rewards))
    return TrainingGroup((90,), done, rewards, own=True)


@torch.no_grad()
def sequence_logprobs(policy: Policy, groups: list[TrainingGroup]) -> list[float]:
    """The mean log-prob of each completion's tokens."""
    done = [(each.prompt_ids, c.ids) for each in groups for c in each.completions]
    return [float(lone_logprobs(policy, *each).mean()) for each in done]


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


def test_an_update_without_a_group_to_learn_from_has_measured_nothing() -> None:
    stats = Learner(random_policy(), CONFIG).update([group(9, (1.0, 1.0)), EXTERNAL[1]])
    counted = {"tokens_trained", "groups_informative", "groups_bounded", "unlikely"}
    counted |= {"refused", "halved"}
    told = {"lr": CONFIG.lr, "skipped": True, "useful": (0.0,), "staleness": ()}
    told["entropies"] = ()
    expected = {
        each.name: told.get(each.name, 0 if each.name in counted else None)
        for each in fields(UpdateStats)
    }
    assert asdict(stats) == expected


def test_entropies_are_told_of_own_groups_as_they_were_before_the_first_step() -> None:
    policy = random_policy()
    asked = [EXTERNAL[0], group(9, (1.0, 1.0)), *MIXED]
    expected = [
        [read(policy, each.prompt_ids, done.ids) for done in each.completions]
        if len(set(each.rewards)) > 1
        else [()] * len(each.completions)
        for each in asked
        if each.own
    ]
    stats = Learner(policy, changed(CONFIG, epochs=2)).update(asked)
    assert [len(each) for each in stats.entropies] == [len(each) for each in expected]
    for told, found in zip(stats.entropies, expected, strict=True):
        for some, others in zip(told, found, strict=True):
            assert some == pytest.approx(others, abs=1e-4)


@torch.no_grad()
def read(policy: Policy, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Entropy where each token stands, from one forward pass of the plain model."""
    text = torch.tensor([[*prompt, *ids]])
    logits = policy.model(input_ids=text).logits[0, len(prompt) - 1 : -1]
    return [float(each) for each in torch.distributions.Categorical(logits=logits).entropy()]


def test_use_is_told_of_external_groups_in_their_order_and_of_no_other() -> None:
    learner = Learner(random_policy(), CONFIG)
    stats = learner.update([MIXED[0], EXTERNAL[1], MIXED[1], EXTERNAL[0]])
    assert len(stats.useful) == 2 and stats.useful[0] == 0.0
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


def test_the_clip_share_of_a_sequence_loss_is_that_of_its_completions() -> None:
    policy = random_policy()
    groups = [single((1.0, 0.0)), group(1, (0.0, 1.0, 0.0, 0.5))]
    before = sequence_logprobs(policy, groups)
    config = changed(CONFIG, loss="gspo", epochs=2, lr=1e-3, clip_low=0.4, clip_high=0.6)
    learner = Learner(policy, config)
    moved: list[list[float]] = []
    step = learner.optimizer.step

    def step_and_look() -> None:
        step()
        moved.append(sequence_logprobs(policy, groups))

    learner.optimizer.step = step_and_look
    stats = learner.update(groups)
    ratios = [math.exp(new - old) for new, old in zip(moved[0], before, strict=True)]
    left = sum(not 0.6 <= ratio <= 1.6 for ratio in ratios)
    assert 0 < left < len(ratios) == 6
    assert stats.clip_fraction == pytest.approx(left / 12), "none in the first of two epochs"


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize(("bound", "left"), [(0.25, 1.0), (0.32, 0.0)])
def test_the_version_before_the_last_update_lies_half_way_however_many_steps_that_made(
    epochs: int, bound: float, left: float
) -> None:
    """Of a drift of 0.5 nats half is the ratio's to the proximal policy: 1.284 for every token."""
    policy = random_policy()
    policy.version = 2 * epochs
    groups = dated(behaving(MIXED, 0.5), epochs)
    config = changed(
        CONFIG, epochs=epochs, lr=1e-9, proximal_policy="versions", clip_low=1.0, clip_high=bound
    )
    assert Learner(policy, config, decoupled=True).update(groups).clip_fraction == left


def test_a_token_of_a_version_to_come_is_refused_before_anything_is_changed() -> None:
    policy = random_policy()
    policy.version = 3
    learner = Learner(policy, CONFIG)
    before, state = weights(policy), learner.state_dict()
    late = group(5, (1.0, 1.0))
    first, *others = late.completions
    versions = (*(3 for _ in first.ids[1:]), 5)
    late = replace(late, completions=(replace(first, versions=versions), *others))
    with pytest.raises(ValueError, match="version 5 of the policy, which is at 3"):
        learner.update([*MIXED, late])
    assert torch.equal(weights(policy), before)
    assert policy.version == 3 and str(learner.state_dict()) == str(state)
    policy.version = 5
    assert not learner.update([*MIXED, late]).skipped


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
