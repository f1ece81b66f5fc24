from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.config.learning import LearnerSection
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.logprobs import distributions, token_logprobs
from node.learner.off_policy import TruncatedWeights
from node.policy.policy import Policy
from tests.support import changed, lone_logprobs, random_policy

CONFIG = LearnerSection(lr=1e-3, max_grad_norm=1e9)


def group(seed: int, rewards: tuple[float, ...], *, own: bool = True) -> TrainingGroup:
    draw = random.Random(seed)
    completions = []
    for _ in rewards:
        length = draw.randint(1, 6)
        ids = (*(draw.randrange(95) for _ in range(length)), 96)
        behaviour = tuple(draw.uniform(-4.0, -0.1) for _ in ids)
        completions.append(TrainingCompletion(ids, (True,) * len(ids), behaviour))
    prompt = tuple(draw.randrange(95) for _ in range(draw.randint(2, 9)))
    return TrainingGroup(prompt, tuple(completions), rewards, own)


EVEN = 0.05
"""Spread of a policy to which every token is as probable as another."""
MIXED = [group(1, (0.0, 1.0, 0.0)), group(2, (1.0, 0.0)), group(3, (0.2, 0.4, 0.9, 0.0))]


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in policy.model.parameters()]).clone()


def gradient_of(
    groups, config: LearnerSection = CONFIG, spread: float = 0.3, **settings
) -> torch.Tensor:
    """The gradient an update would take, caught where it is handed to the optimizer."""
    policy = random_policy(spread=spread)
    learner = Learner(policy, config, **settings)
    caught = []
    learner.optimizer.step = lambda: caught.append(
        torch.cat([p.grad.flatten() for p in policy.model.parameters()]).clone()
    )
    learner.update(groups)
    weights = sum(p.numel() for p in policy.model.parameters())
    return caught[0] if caught else torch.zeros(weights)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 1.0]), max_size=3), st.randoms())
def test_groups_without_signal_act_only_through_the_denominator(levels, shuffler):
    idle = [group(10 + i, (level,) * 4) for i, level in enumerate(levels)]
    mixed = [*MIXED, *idle]
    shuffler.shuffle(mixed)
    torch.testing.assert_close(
        gradient_of(mixed) * len(mixed) / len(MIXED), gradient_of(MIXED), atol=1e-6, rtol=1e-4
    )


def test_skipping_groups_without_signal_equals_training_on_them():
    """A group of equal rewards and one with rewards that differ by next to nothing agree."""
    idle = group(10, (0.5,) * 4)
    nearly = dataclasses.replace(idle, rewards=(0.5, 0.5, 0.5, 0.5 + 1e-12))
    torch.testing.assert_close(
        gradient_of([*MIXED, idle]), gradient_of([*MIXED, nearly]), atol=1e-6, rtol=0
    )


def test_without_any_signal_no_step_is_made():
    policy = random_policy()
    learner = Learner(policy, CONFIG)
    before = weights(policy)
    stats = learner.update([group(1, (1.0, 1.0)), group(2, (0.0, 0.0, 0.0))])
    assert stats.skipped
    assert (stats.groups_informative, stats.tokens_trained, stats.refused) == (0, 0, 0)
    assert policy.version == 0
    assert torch.equal(weights(policy), before)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "gspo", "cispo"])
@pytest.mark.parametrize("budget", [1, 24, 60])
def test_the_gradient_does_not_depend_on_how_rows_are_split(loss, budget):
    config = changed(CONFIG, loss=loss)
    split = changed(config, micro_batch_tokens=budget)
    torch.testing.assert_close(
        gradient_of(MIXED, split), gradient_of(MIXED, config), atol=1e-6, rtol=1e-4
    )


def behaving(groups, shift: float) -> list[TrainingGroup]:
    """The groups, sampled by a policy that differs from the learner's by ``shift`` nats."""
    policy = random_policy()
    changed = []
    for each in groups:
        completions = []
        for done in each.completions:
            with torch.no_grad():
                cur = lone_logprobs(policy, each.prompt_ids, done.ids)
            behaviour = tuple((cur - shift).tolist())
            completions.append(dataclasses.replace(done, behaviour=behaviour))
        changed.append(dataclasses.replace(each, completions=tuple(completions)))
    return changed


def test_a_behaviour_other_than_the_policy_counts_under_tis_and_not_under_none():
    plain = gradient_of(MIXED)
    near, far = behaving(MIXED, 0.5), behaving(MIXED, 3.0)
    torch.testing.assert_close(gradient_of(near, correction="none"), plain)
    torch.testing.assert_close(
        gradient_of(near, correction="tis"), plain * 1.6487, atol=1e-5, rtol=1e-3
    )
    capped = plain * TruncatedWeights.Options().cap
    torch.testing.assert_close(gradient_of(far, correction="tis"), capped, atol=1e-5, rtol=1e-3)


DECOUPLED = {"decoupled": True, "correction": "none"}


def test_own_stale_tokens_are_weighed_by_importance_and_dropped_beyond_the_cap():
    plain = gradient_of(MIXED)
    near, far = behaving(MIXED, 0.5), behaving(MIXED, 3.0)
    torch.testing.assert_close(gradient_of(near, **DECOUPLED), plain * 1.6487, atol=1e-5, rtol=1e-3)
    assert not gradient_of(far, **DECOUPLED).any()
    clamped = gradient_of(far, changed(CONFIG, stale="clamp"), **DECOUPLED)
    torch.testing.assert_close(clamped, plain * CONFIG.importance_cap, atol=1e-5, rtol=1e-3)


def test_external_tokens_keep_their_own_correction_beside_stale_ones():
    external = [dataclasses.replace(g, own=False) for g in behaving(MIXED, 3.0)]
    for correction in ("none", "tis", "tapered"):
        torch.testing.assert_close(
            gradient_of(external, decoupled=True, correction=correction, spread=EVEN),
            gradient_of(external, correction=correction, spread=EVEN),
        )


def test_an_external_token_never_weighs_more_for_what_its_author_claims():
    external = [dataclasses.replace(g, own=False) for g in MIXED]
    plain = gradient_of(forgotten(external), correction="tis")
    modest, boastful = behaving(external, -0.5), behaving(external, 3.0)
    torch.testing.assert_close(gradient_of(boastful, correction="tis"), plain)
    torch.testing.assert_close(
        gradient_of(modest, correction="tis"), plain * 0.6065, atol=1e-5, rtol=1e-3
    )


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "gspo", "cispo"])
def test_log_probs_of_65504_below_zero_change_nothing(loss):
    config = changed(CONFIG, loss=loss)
    external = [dataclasses.replace(g, own=False) for g in MIXED]
    absurd = behaving(external, 65504.0)
    for correction in ("none", "tis", "tapered"):
        torch.testing.assert_close(
            gradient_of(absurd, config, EVEN, correction=correction),
            gradient_of(forgotten(external), config, EVEN, correction=correction),
        )


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "gspo", "cispo"])
def test_every_group_weighs_the_same_whatever_its_number_of_completions(loss):
    """Writing all of its answers eight times over changes nothing about what a group does."""
    config = changed(CONFIG, loss=loss, advantage="dr_grpo")
    fat = dataclasses.replace(
        MIXED[0], completions=MIXED[0].completions * 8, rewards=MIXED[0].rewards * 8
    )
    torch.testing.assert_close(
        gradient_of([fat, *MIXED[1:]], config), gradient_of(MIXED, config), atol=1e-5, rtol=1e-3
    )


def test_an_update_is_the_mean_of_what_its_groups_do_alone():
    alone = torch.stack([gradient_of([each]) for each in MIXED])
    torch.testing.assert_close(gradient_of(MIXED), alone.mean(0), atol=1e-6, rtol=1e-4)


def dated(groups, version: int) -> list[TrainingGroup]:
    """The groups, written by this version of the policy."""
    return [
        dataclasses.replace(
            g,
            completions=tuple(
                dataclasses.replace(c, versions=(version,) * len(c.ids)) for c in g.completions
            ),
        )
        for g in groups
    ]


def test_a_proximal_policy_told_by_age_moves_the_drift_from_the_weight_to_the_ratio():
    """The product of weight and ratio is the same; only what clips it differs."""
    open_clip = changed(CONFIG, clip_low=1.0, clip_high=9.0, importance_cap=9.0)
    told = changed(open_clip, proximal_policy="versions")
    near = behaving(MIXED, 0.5)
    whole = gradient_of(near, open_clip, **DECOUPLED)
    for version in (0, -1):
        torch.testing.assert_close(
            gradient_of(dated(near, version), told, **DECOUPLED), whole, atol=1e-6, rtol=1e-4
        )
    clipped = changed(CONFIG, proximal_policy="versions")
    assert not torch.allclose(gradient_of(dated(near, 0), clipped, **DECOUPLED), whole)


def test_an_update_tells_ages_ratios_and_what_was_dropped():
    policy = random_policy()
    policy.version = 5
    groups = dated(behaving(MIXED[:1], 0.0), 5) + dated(behaving(MIXED[1:], -3.0), 3)
    stats = Learner(policy, CONFIG, decoupled=True).update(groups)
    tokens = [sum(len(c.ids) for g in part for c in g.completions) for part in (groups[:1], groups)]
    assert stats.staleness == (tokens[0], 0, tokens[1] - tokens[0])
    assert stats.engine_gap < 1e-5, "tokens of other versions tell nothing of the engine"
    assert (stats.ratio_low, stats.ratio_high) == pytest.approx((0.0498, 1.0), rel=1e-3)
    assert stats.masked_fraction == 0
    far = Learner(random_policy(), CONFIG, decoupled=True).update(behaving(MIXED, 3.0))
    assert far.masked_fraction == 1


def test_no_claim_of_a_stranger_reaches_the_statistics():
    external = [dataclasses.replace(g, own=False) for g in behaving(MIXED, 65504.0)]
    own = dated(behaving([group(7, (0.0, 1.0))], 0.0), 0)
    stats = Learner(random_policy(), CONFIG).update([*external, *own])
    assert (stats.ratio_low, stats.ratio_high) == pytest.approx((1.0, 1.0), rel=1e-3)
    assert (stats.ratio_mean, stats.ratio_max) == pytest.approx((1.0, 1.0), rel=1e-3)


def forgotten(groups) -> list[TrainingGroup]:
    """The groups without their behaviour's log-probs."""
    return [
        dataclasses.replace(
            g, completions=tuple(dataclasses.replace(c, behaviour=None) for c in g.completions)
        )
        for g in groups
    ]


def only_right(each: TrainingGroup) -> TrainingGroup:
    """The group with all completions masked whose advantage is negative."""
    mean = sum(each.rewards) / len(each.rewards)
    done = tuple(
        c if reward > mean else dataclasses.replace(c, trained=(False,) * len(c.ids))
        for c, reward in zip(each.completions, each.rewards, strict=True)
    )
    return dataclasses.replace(each, completions=done)


def test_tapering_leaves_out_wrong_answers_that_this_policy_would_not_write():
    """They are of an author who found them far more probable."""
    foreign = [dataclasses.replace(g, own=False) for g in MIXED]
    right = [only_right(g) for g in foreign]
    expected = [
        gradient_of([g], spread=EVEN) * sum(sum(c.trained) for c in g.completions) / tokens
        for g, tokens in zip(
            right, [sum(len(c.ids) for c in g.completions) for g in foreign], strict=True
        )
    ]
    torch.testing.assert_close(
        gradient_of(behaving(foreign, -20.0), correction="tapered", spread=EVEN),
        torch.stack(expected).mean(0),
        atol=1e-4,
        rtol=1e-3,
    )


def test_tapering_changes_nothing_about_own_answers():
    torch.testing.assert_close(
        gradient_of(behaving(MIXED, -20.0), correction="tapered"),
        gradient_of(MIXED),
        atol=1e-6,
        rtol=1e-4,
    )


def test_an_unknown_behaviour_is_taken_for_the_policys_own_under_tis():
    torch.testing.assert_close(gradient_of(forgotten(MIXED), correction="tis"), gradient_of(MIXED))


def test_prompts_are_masked_and_the_end_of_sequence_token_is_trained():
    """The gradient equals that of the log-prob of the completions' tokens, EOS among them."""
    policy = random_policy()
    each = group(1, (0.0, 1.0))
    total = torch.zeros(())
    for done, advantage in zip(each.completions, (-0.5, 0.5), strict=True):
        total = total - advantage * lone_logprobs(policy, each.prompt_ids, done.ids).sum()
    total = total / sum(len(c.ids) for c in each.completions)
    expected = torch.autograd.grad(total, list(policy.model.parameters()))
    config = changed(CONFIG, advantage="dr_grpo")
    torch.testing.assert_close(
        gradient_of([each], config),
        torch.cat([g.flatten() for g in expected]),
        atol=1e-6,
        rtol=1e-4,
    )


def test_tokens_of_an_environment_are_context_and_not_trained():
    done = group(1, (0.0, 1.0)).completions
    spoken = tuple(
        TrainingCompletion((7, *c.ids), (False, *c.trained), (0.0, *c.behaviour)) for c in done
    )
    prompt = (4, 5, 6)
    told = TrainingGroup(prompt, spoken, (0.0, 1.0), True)
    asked = TrainingGroup((*prompt, 7), done, (0.0, 1.0), True)
    torch.testing.assert_close(gradient_of([told]), gradient_of([asked]))


def test_what_is_longer_than_the_cap_is_trained_on_up_to_it():
    config = changed(CONFIG, max_completion_tokens=3)
    short = [
        dataclasses.replace(g, completions=tuple(c.first(3) for c in g.completions)) for g in MIXED
    ]
    torch.testing.assert_close(gradient_of(MIXED, config), gradient_of(short, CONFIG))


@pytest.mark.parametrize("correction", ["none", "tis", "tapered"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_engines_logprobs_are_the_learners_at_equal_weights(correction, temperature):
    policy = random_policy(spread=0.1)
    engine = TransformersEngine(policy, seed=0)
    prompt = policy.encode_prompt("1+1=")
    (samples,) = engine.generate([prompt], 8, Sampling(temperature, max_new_tokens=12))
    completions = tuple(
        TrainingCompletion(s.tokens.ids, (True,) * len(s.tokens.ids), s.tokens.logprobs)
        for s in samples
    )
    own = TrainingGroup(tuple(prompt), completions, (1.0, *[0.0] * 7), True)
    learner = Learner(policy, CONFIG, temperature=temperature, correction=correction)
    stats = learner.update([own])
    assert stats.engine_gap < 1e-5
    assert stats.ratio_mean == pytest.approx(1.0, abs=1e-4)
    assert stats.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert stats.tokens_trained == sum(len(s.tokens.ids) for s in samples)
    assert not stats.skipped
    assert policy.version == 1


def test_an_update_raises_the_odds_of_what_was_rewarded():
    policy = random_policy()
    learner = Learner(policy, CONFIG)
    each = group(1, (0.0, 1.0))

    def odds() -> list[float]:
        with torch.no_grad():
            return [
                float(lone_logprobs(policy, each.prompt_ids, c.ids).sum()) for c in each.completions
            ]

    before = odds()
    learner.update([each])
    after = odds()
    assert after[0] < before[0]
    assert after[1] > before[1]


def test_more_epochs_are_held_by_the_trust_region():
    policy = random_policy()
    config = LearnerSection(lr=3e-2, epochs=3)
    stats = Learner(policy, config).update(MIXED)
    assert policy.version == 3
    assert 0 < stats.clip_fraction < 1


def spoil(policy: Policy) -> None:
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")


def test_a_step_that_is_not_finite_is_refused_loudly_and_leaves_the_weights(caplog):
    policy = random_policy()
    learner = Learner(policy, CONFIG)
    spoil(policy)
    before = weights(policy)
    state = learner.state_dict()["optimizer"]["adam"]["state"]
    stats = learner.update(MIXED)
    assert stats.skipped
    assert stats.refused == 1
    assert policy.version == 0
    assert torch.equal(weights(policy).nan_to_num(), before.nan_to_num())
    assert learner.state_dict()["optimizer"]["adam"]["state"] == state
    assert "step refused" in caplog.text


def test_after_a_refused_step_training_goes_on_from_the_same_weights():
    policy, other = random_policy(), random_policy()
    uncapped = {"correction": "tis", "correction_options": {"cap": 1e38}}
    learner, refusing = (Learner(p, CONFIG, **uncapped) for p in (policy, other))
    assert refusing.update(behaving(MIXED, 1e9)).refused == 1
    same = behaving(MIXED, 0.0)
    learner.update(same)
    refusing.update(same)
    assert torch.equal(weights(other), weights(policy))


def test_a_restored_learner_takes_the_step_that_the_saved_one_would_have_taken():
    policy, other = random_policy(), random_policy()
    config = changed(CONFIG, warmup_steps=4)
    learner = Learner(policy, config)
    learner.update(MIXED)
    other.model.load_state_dict(policy.model.state_dict())
    restored = Learner(other, config)
    restored.load_state_dict(learner.state_dict())
    assert learner.update(MIXED).lr == restored.update(MIXED).lr == pytest.approx(5e-4)
    assert torch.equal(weights(policy), weights(other))
    assert other.version == policy.version == 2


def test_steps_smaller_than_half_precision_can_show_are_not_lost():
    policy = random_policy(dtype=torch.bfloat16, spread=1.0)
    learner = Learner(policy, LearnerSection(lr=1e-4))
    before = weights(policy)
    for _ in range(30):
        learner.update(MIXED)
    drift = (weights(policy) - before).abs().mean()
    assert 3e-4 < drift < 4e-3
    assert learner.state_dict()["optimizer"]["masters"][0].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logprobs_under_half_precision_weights_are_float32_and_close_to_full_precision(dtype):
    found = []
    for policy in (random_policy(dtype=dtype, spread=0.1), random_policy(spread=0.1)):
        learner = Learner(policy, CONFIG)
        (batch,) = learner.batches(learner.rows(MIXED))
        with torch.no_grad():
            distribution = distributions(policy.model, batch, 0.7)
        assert distribution.dtype == torch.float32
        torch.testing.assert_close(
            distribution.exp().sum(-1), torch.ones(len(distribution)), atol=1e-5, rtol=0
        )
        found.append(token_logprobs(distribution, batch)[batch.mask])
    half, full = found
    assert (half - full).abs().max() < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_get_the_full_precision_gradient(dtype):
    policy = random_policy(dtype=dtype)
    learner = Learner(policy, CONFIG)
    optimizer, caught = learner.optimizer, []
    optimizer.step = lambda: caught.append(torch.cat([m.grad.flatten() for m in optimizer.masters]))
    learner.update(MIXED)
    (half,), full = caught, gradient_of(MIXED)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, full, dim=0) > 0.99
    assert half.norm() / full.norm() == pytest.approx(1.0, abs=0.05)


def test_tokens_and_mask_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        TrainingCompletion((1, 2), (True,))


def test_a_group_without_a_prompt_is_refused():
    with pytest.raises(ValueError, match="prompt_ids is empty"):
        TrainingGroup((), group(1, (0.0, 1.0)).completions, (0.0, 1.0), True)
