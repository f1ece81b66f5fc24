import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.testing import assert_close

from node.config.learning import LearnerSection
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.gradient_bound import bound
from node.learner.group_gradients import GroupGradients
from node.learner.learner import Learner
from node.learner.update_stats import UpdateSums
from tests.node.learner import parts
from tests.node.learner.parts import FAT, HONEST, HOT, MIXED, drawn, gradient_of, spoil, weights
from tests.support import changed, loaded, random_policy

CONFIG = changed(parts.CONFIG, groups_per_step=0)
"""One step: the bound limits each group's part of the step's gradient."""

NORMS = st.floats(0, 1e6)


@example(local=0.0, external=[1.0, 5e-324], idle=2)
@given(local=NORMS, external=st.lists(NORMS, min_size=1, max_size=12), idle=st.integers(0, 12))
def test_bound_is_largest_that_limits_peers_to_twice_their_share(local, external, idle):
    groups = len(external) + idle
    level = bound(local, external, groups)

    def allowed(t):
        return 2 / groups * (local + math.fsum(min(norm, t) for norm in external))

    highest = min(level, max(external))
    assert highest <= allowed(highest) * (1 + 1e-6) + 1e-9
    if level < max(external) * (1 - 1e-6):
        more = level * 1.01 + 1e-6
        assert more >= allowed(more) * (1 - 1e-6)


@pytest.mark.parametrize("loss", parts.LOSSES)
@pytest.mark.parametrize("intruder", [FAT, HOT], ids=["fat", "hot"])
def test_peer_group_has_at_most_twice_its_share_of_the_gradient(intruder, loss):
    stats = Learner(random_policy(), changed(CONFIG, loss=loss)).update([*HONEST, intruder])
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6


def test_oversized_group_gradient_is_scaled_down_to_the_bound():
    """Local gradients stay, and larger peer gradients get the norm of the bound."""
    for intruder in (HOT, drawn(60, 2, 2)):
        groups = [*HONEST, intruder]
        alone = [gradient_of([each], CONFIG) / 12 for each in groups]
        norms = [float(each.norm()) for each in alone]
        local = math.fsum(n for n, g in zip(norms, groups, strict=True) if g.local)
        level = bound(local, [n for n, g in zip(norms, groups, strict=True) if not g.local], 12)
        expected = sum(
            each if g.local else each * min(1.0, level / norm)
            for each, norm, g in zip(alone, norms, groups, strict=True)
        )
        assert_close(gradient_of(groups, CONFIG), expected, atol=1e-5, rtol=1e-3)


def test_equal_norm_groups_and_local_groups_are_never_scaled():
    groups = [MIXED[0], *parts.external(MIXED[1:])]
    assert_close(gradient_of(groups), gradient_of(MIXED), atol=1e-6, rtol=1e-4)
    local = [replace(g, local=True) for g in [*HONEST, HOT]]
    stats = Learner(random_policy(), CONFIG).update(local)
    assert (stats.largest_share, stats.groups_bounded) == (None, 0)


@pytest.mark.parametrize(
    ("changes", "usual"),
    [
        ({}, {"epochs": 3, "lr": 3e-2}),
        ({"micro_batch_tokens": 1}, {}),
        ({"gradient_checkpointing": True}, {}),
        ({"offload": True}, {}),
    ],
    ids=str,
)
def test_bound_holds_for_every_gradient_computation(changes, usual):
    policy, plain = random_policy(), random_policy()
    config = changed(CONFIG, **usual)
    stats = Learner(policy, changed(config, **changes)).update([*HONEST, HOT])
    expected = Learner(plain, config).update([*HONEST, HOT])
    assert stats.largest_share == pytest.approx(expected.largest_share, rel=1e-3)
    assert stats.groups_bounded == expected.groups_bounded >= 1
    assert_close(weights(policy), weights(plain), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bound_holds_in_half_precision(dtype):
    stats = Learner(random_policy(dtype=dtype), CONFIG).update([*HONEST, HOT])
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6 and not stats.refused


def test_nonfinite_gradient_skips_the_step_for_local_and_peer_groups():
    stats = Learner(spoil(random_policy()), LearnerSection(lr=1e-3)).update(HONEST)
    assert stats.refused == 1 and stats.skipped
    policy = spoil(random_policy())
    stats = Learner(policy, CONFIG).update([drawn(n, 4, 24) for n in range(2)])
    assert (stats.skipped, stats.refused, policy.version) == (True, 0, 0)
    assert (stats.largest_share, stats.groups_bounded, stats.useful) == (None, 2, (0.0, 0.0))


@pytest.mark.parametrize("intruder", [drawn(70, 4, 24), FAT, HOT], ids=["plain", "fat", "hot"])
def test_joint_and_single_group_passes_make_the_same_update(intruder, monkeypatch):
    together, apart = random_policy(), random_policy()
    first = Learner(together, CONFIG).update([*HONEST, intruder])
    monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    second = Learner(apart, CONFIG).update([*HONEST, intruder])
    assert first.largest_share == pytest.approx(second.largest_share, rel=1e-3)
    assert first.groups_bounded == second.groups_bounded
    assert first.useful == pytest.approx(second.useful, abs=1e-2)
    assert_close(weights(together), weights(apart), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["tiny", "tiny-wide"])
def test_group_gradients_cover_all_shipped_model_weights(name):
    policy = loaded(name)
    learner, ids = Learner(policy, CONFIG), tuple(range(3, 7))
    done = tuple(TrainingCompletion((n, *ids), (True,) * 5) for n in (1, 2))
    groups = [TrainingGroup(ids, done, (0.0, 1.0), local) for local in (True, False)]
    with GroupGradients(policy.model, [0, 1]) as gradients:
        learner.add(learner.rows(groups), {}, UpdateSums(), apart=gradients)
    assert gradients.complete


def test_model_with_unhooked_weights_is_read_group_by_group(caplog):
    policy = random_policy()
    norm = policy.model.model.layers[0].input_layernorm
    norm.__class__ = type("Strange", (type(norm),), {})
    with caplog.at_level("INFO"):
        stats = Learner(policy, CONFIG).update([*HONEST, HOT])
    assert "forward passes of one group" in caplog.text and 0 < stats.largest_share <= 2 / 12 + 1e-6
