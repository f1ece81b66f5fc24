from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from node.config.learning import LearnerSection, PolicySection
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.gradient_bound import bound
from node.learner.group_gradients import GroupGradients
from node.learner.learner import Learner
from node.learner.update_stats import UpdateSums
from node.policy.policy import Policy
from tests.node.learner import test_learner
from tests.node.learner.test_learner import MIXED, gradient_of, spoil, weights
from tests.support import changed, random_policy

CONFIG = changed(test_learner.CONFIG, groups_per_step=0)
"""One step: what is bounded is a group's part of its gradient."""


def drawn(seed: int, completions: int, length: int, *, own: bool = False) -> TrainingGroup:
    """Random right and wrong answers, whose author claims to have found them improbable."""
    draw = random.Random(seed)
    lines = [tuple(draw.randrange(95) for _ in range(length)) for _ in range(completions)]
    done = tuple(TrainingCompletion(ids, (True,) * length, (-65504.0,) * length) for ids in lines)
    rewards = tuple(float(n % 2) for n in range(completions))
    return TrainingGroup((1, 2, seed), done, rewards, own)


HONEST = [drawn(n, 4, 24, own=n % 2 == 0) for n in range(11)]


def fat() -> TrainingGroup:
    """What mallory sends: as much as a group may hold."""
    return drawn(50, 64, 40)


def hot(own: bool = False) -> TrainingGroup:
    """A single token each, which a mean over tokens does not thin out."""
    done = tuple(TrainingCompletion((n,), (True,), (-65504.0,)) for n in (5, 90))
    return TrainingGroup((1, 2, 3), done, (0.0, 1.0), own)


NORMS = st.floats(0, 1e6)


@example(own=0.0, external=[1.0, 5e-324], idle=2)
@given(own=NORMS, external=st.lists(NORMS, min_size=1, max_size=12), idle=st.integers(0, 12))
def test_the_bound_is_the_largest_under_which_no_external_group_has_more_than_twice_its_part(
    own, external, idle
):
    groups = len(external) + idle
    level = bound(own, external, groups)

    def allowed(t: float) -> float:
        return 2 / groups * (own + math.fsum(min(norm, t) for norm in external))

    highest = min(level, max(external))
    assert highest <= allowed(highest) * (1 + 1e-6) + 1e-9
    if level < max(external) * (1 - 1e-6):
        more = level * 1.01 + 1e-6
        assert more >= allowed(more) * (1 - 1e-6)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "gspo", "cispo"])
@pytest.mark.parametrize("intruder", [fat(), hot()], ids=["fat", "hot"])
def test_no_external_group_has_more_than_twice_its_part_of_the_gradient(intruder, loss):
    config = changed(CONFIG, loss=loss)
    stats = Learner(random_policy(), config).update([*HONEST, intruder])
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6


def test_a_group_far_above_the_others_is_scaled_down_to_the_bound():
    """What is left is the honest gradient and that of the intruder at the norm that it may have."""
    for intruder in (hot(), drawn(60, 2, 2)):
        alone = [gradient_of([each], CONFIG) / 12 for each in (*HONEST, intruder)]
        norms = [float(each.norm()) for each in alone]
        own = math.fsum(n for n, g in zip(norms, HONEST, strict=False) if g.own)
        external = [n for n, g in zip(norms, [*HONEST, intruder], strict=True) if not g.own]
        level = bound(own, external, 12)
        expected = sum(
            each if g.own else each * min(1.0, level / norm)
            for each, norm, g in zip(alone, norms, [*HONEST, intruder], strict=True)
        )
        torch.testing.assert_close(
            gradient_of([*HONEST, intruder], CONFIG), expected, atol=1e-5, rtol=1e-3
        )


def test_groups_of_equal_norm_are_added_as_in_one_pass():
    external = [dataclasses.replace(g, own=False) for g in MIXED]
    torch.testing.assert_close(
        gradient_of([MIXED[0], *external[1:]]), gradient_of(MIXED), atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 3, "lr": 3e-2},
        {"micro_batch_tokens": 1},
        {"gradient_checkpointing": True},
        {"offload": True},
    ],
    ids=str,
)
def test_the_bound_holds_however_the_gradient_is_computed(changes):
    config = changed(CONFIG, **changes)
    groups = [*HONEST, hot()]
    policy, plain = random_policy(), random_policy()
    stats = Learner(policy, config).update(groups)
    usual = {k: v for k, v in changes.items() if k in ("epochs", "lr")}
    expected = Learner(plain, changed(CONFIG, **usual)).update(groups)
    assert stats.largest_share == pytest.approx(expected.largest_share, rel=1e-3)
    assert stats.groups_bounded == expected.groups_bounded >= 1
    torch.testing.assert_close(weights(policy), weights(plain), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bound_holds_in_half_precision(dtype):
    stats = Learner(random_policy(dtype=dtype), CONFIG).update([*HONEST, hot()])
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6
    assert not stats.refused


def test_own_groups_are_never_scaled():
    groups = [dataclasses.replace(g, own=True) for g in [*HONEST, hot()]]
    stats = Learner(random_policy(), CONFIG).update(groups)
    assert (stats.largest_share, stats.groups_bounded) == (None, 0)


def test_a_gradient_that_is_not_finite_is_still_refused():
    policy = random_policy()
    spoil(policy)
    stats = Learner(policy, LearnerSection(lr=1e-3)).update(HONEST)
    assert stats.refused == 1 and stats.skipped


def test_external_groups_alone_whose_gradients_are_not_finite_make_no_step():
    policy = random_policy()
    spoil(policy)
    stats = Learner(policy, CONFIG).update([drawn(n, 4, 24) for n in range(2)])
    assert (stats.skipped, stats.refused, policy.version) == (True, 0, 0)
    assert (stats.largest_share, stats.groups_bounded, stats.useful) == (None, 2, (0.0, 0.0))


@pytest.mark.parametrize("intruder", [drawn(70, 4, 24), fat(), hot()], ids=["plain", "fat", "hot"])
def test_groups_read_together_and_one_by_one_make_the_same_update(intruder, monkeypatch):
    together, apart = random_policy(), random_policy()
    groups = [*HONEST, intruder]
    first = Learner(together, CONFIG).update(groups)
    monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    second = Learner(apart, CONFIG).update(groups)
    assert first.largest_share == pytest.approx(second.largest_share, rel=1e-3)
    assert first.groups_bounded == second.groups_bounded
    assert first.useful == pytest.approx(second.useful, abs=1e-2)
    torch.testing.assert_close(weights(together), weights(apart), atol=1e-3, rtol=1e-3)


def test_an_update_hears_every_weight_of_the_shipped_models():
    for name in ("tiny", "tiny-wide"):
        policy = Policy.load(PolicySection(model=name, device="cpu"))
        learner = Learner(policy, CONFIG)
        ids = tuple(range(3, 7))
        done = tuple(TrainingCompletion((n, *ids), (True,) * 5) for n in (1, 2))
        groups = [TrainingGroup(ids, done, (0.0, 1.0), own) for own in (True, False)]
        with GroupGradients(policy.model, [0, 1]) as parts:
            learner.add(learner.rows(groups), {}, UpdateSums(), apart=parts)
        assert parts.complete


def test_a_model_with_weights_that_no_hook_hears_is_read_group_by_group(caplog):
    policy = random_policy()
    policy.model.model.layers[0].input_layernorm.__class__ = type(
        "Strange", (type(policy.model.model.layers[0].input_layernorm),), {}
    )
    with caplog.at_level("INFO"):
        stats = Learner(policy, CONFIG).update([*HONEST, hot()])
    assert "one by one" in caplog.text
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6
