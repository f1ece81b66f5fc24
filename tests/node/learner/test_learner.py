from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from node.config.learning import LearnerSection
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.errors import ConfigError
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import GradientCheckpointing, Learner, Pass
from node.learner.logprobs import TokenScores, VocabularyHead, distributions, token_logprobs
from node.learner.off_policy import TruncatedWeights
from node.policy.policy import Policy
from tests.library_privates import counted_uploads
from tests.node.learner import parts
from tests.node.learner.parts import CONFIG, MIXED, behaving, external, gradient_of, group, weights
from tests.node.learner.test_logprobs import parts_of
from tests.support import changed, lone_logprobs, random_policy

DECOUPLED = {"decoupled": True, "correction": "none"}
CORRECTIONS = ("none", "tis", "tapered")


close = partial(assert_close, atol=1e-6, rtol=1e-4)
near = partial(assert_close, atol=1e-5, rtol=1e-3)
NEAR, FAR = behaving(MIXED, 0.5), behaving(MIXED, 3.0)
RECOMPUTED = changed(CONFIG, gradient_checkpointing=True)


def silent(groups):
    """The groups without their behaviour's log-probs."""
    return [parts.with_completions(each, behaviour=None) for each in groups]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 1.0]), max_size=3), st.randoms())
def test_groups_without_signal_act_only_through_the_denominator(levels, shuffler):
    mixed = [*MIXED, *[group(10 + i, (level,) * 4) for i, level in enumerate(levels)]]
    shuffler.shuffle(mixed)
    close(gradient_of(mixed) * len(mixed) / len(MIXED), gradient_of(MIXED))


def test_skipping_groups_without_signal_equals_training_on_them():
    """A group of equal rewards and one with rewards that differ by next to nothing agree."""
    idle = group(10, (0.5,) * 4)
    nearly = replace(idle, rewards=(0.5, 0.5, 0.5, 0.5 + 1e-12))
    close(gradient_of([*MIXED, idle]), gradient_of([*MIXED, nearly]), rtol=0)


def test_without_any_signal_no_step_is_made():
    policy = random_policy()
    learner = Learner(policy, CONFIG)
    before = weights(policy)
    stats = learner.update([group(1, (1.0, 1.0)), group(2, (0.0, 0.0, 0.0))])
    assert stats.skipped
    assert (stats.groups_informative, stats.tokens_trained, stats.refused) == (0, 0, 0)
    assert policy.version == 0 and torch.equal(weights(policy), before)


def test_a_behaviour_other_than_the_policy_counts_where_it_is_known_and_under_tis_alone():
    plain = gradient_of(MIXED)
    assert_close(gradient_of(NEAR, correction="none"), plain)
    near(gradient_of(NEAR, correction="tis"), plain * 1.6487)
    near(gradient_of(FAR, correction="tis"), plain * TruncatedWeights.Options().cap)
    assert_close(gradient_of(silent(MIXED), correction="tis"), plain)


def test_own_stale_tokens_are_weighed_by_importance_up_to_a_cap_and_external_ones_as_ever():
    plain = gradient_of(MIXED)
    near(gradient_of(NEAR, **DECOUPLED), plain * 1.6487)
    assert not gradient_of(FAR, **DECOUPLED).any()
    clamped = gradient_of(FAR, changed(CONFIG, stale="clamp"), **DECOUPLED)
    near(clamped, plain * CONFIG.importance_cap)
    for correction in CORRECTIONS:
        how = {"correction": correction, "spread": parts.EVEN}
        stale = gradient_of(external(FAR), decoupled=True, **how)
        assert_close(stale, gradient_of(external(FAR), **how))


def test_an_external_token_never_weighs_more_for_what_its_author_claims():
    plain = gradient_of(silent(external(MIXED)), correction="tis")
    assert_close(gradient_of(external(FAR), correction="tis"), plain)
    near(gradient_of(behaving(external(MIXED), -0.5), correction="tis"), plain * 0.6065)


@pytest.mark.parametrize("loss", parts.LOSSES)
def test_log_probs_of_65504_below_zero_change_nothing(loss):
    config, absurd = changed(CONFIG, loss=loss), external(behaving(MIXED, 65504.0))
    for correction in CORRECTIONS:
        assert_close(
            gradient_of(absurd, config, parts.EVEN, correction=correction),
            gradient_of(silent(absurd), config, parts.EVEN, correction=correction),
        )


@pytest.mark.parametrize("loss", parts.LOSSES)
def test_every_group_weighs_the_same_whatever_its_number_of_completions(loss):
    """Writing all of its answers eight times over changes nothing about what a group does."""
    config, first = changed(CONFIG, loss=loss, advantage="dr_grpo"), MIXED[0]
    fat = replace(first, completions=first.completions * 8, rewards=first.rewards * 8)
    near(gradient_of([fat, *MIXED[1:]], config), gradient_of(MIXED, config))


def test_an_update_is_the_mean_of_what_its_groups_do_alone():
    close(gradient_of(MIXED), torch.stack([gradient_of([each]) for each in MIXED]).mean(0))


def test_a_proximal_policy_told_by_age_moves_the_drift_from_the_weight_to_the_ratio():
    """The product of weight and ratio is the same; only what clips it differs."""
    open_clip = changed(CONFIG, clip_low=1.0, clip_high=9.0, importance_cap=9.0)
    told = changed(open_clip, proximal_policy="versions")
    whole = gradient_of(NEAR, open_clip, **DECOUPLED)
    for version in (0, -1):
        close(gradient_of(parts.dated(NEAR, version), told, **DECOUPLED), whole)
    clipped = changed(CONFIG, proximal_policy="versions")
    assert not torch.allclose(gradient_of(parts.dated(NEAR, 0), clipped, **DECOUPLED), whole)


def test_an_update_tells_ages_ratios_and_what_was_dropped():
    groups = parts.dated(behaving(MIXED[:1], 0.0), 5) + parts.dated(behaving(MIXED[1:], -3.0), 3)
    stats = Learner(parts.policy_at(5), CONFIG, decoupled=True).update(groups)
    tokens = [sum(len(c.ids) for g in part for c in g.completions) for part in (groups[:1], groups)]
    assert stats.staleness == (tokens[0], 0, tokens[1] - tokens[0])
    assert stats.engine_gap < 1e-5, "tokens of other versions tell nothing of the engine"
    assert (stats.ratio_low, stats.ratio_high) == pytest.approx((0.0498, 1.0), rel=1e-3)
    assert stats.masked_fraction == 0
    assert Learner(random_policy(), CONFIG, decoupled=True).update(FAR).masked_fraction == 1


def test_no_claim_of_a_stranger_reaches_the_statistics():
    own = parts.dated(behaving([group(7, (0.0, 1.0))], 0.0), 0)
    stats = Learner(random_policy(), CONFIG).update([*external(behaving(MIXED, 65504.0)), *own])
    told = (stats.ratio_low, stats.ratio_high, stats.ratio_max)
    assert told == pytest.approx((1.0,) * 3, rel=1e-3)


def test_tapering_leaves_out_wrong_answers_of_others_that_this_policy_would_not_write():
    """They are of an author who found them far more probable."""
    expected = []
    for each in external(MIXED):
        right = [reward > fmean(each.rewards) for reward in each.rewards]
        pairs = zip(each.completions, right, strict=True)
        done = [replace(c, trained=(r,) * len(c.ids)) for c, r in pairs]
        trained = [flag for c in done for flag in c.trained]
        alone = gradient_of([replace(each, completions=tuple(done))], spread=parts.EVEN)
        expected.append(alone * sum(trained) / len(trained))
    found = gradient_of(behaving(external(MIXED), -20.0), correction="tapered", spread=parts.EVEN)
    assert_close(found, torch.stack(expected).mean(0), atol=1e-4, rtol=1e-3)
    close(gradient_of(behaving(MIXED, -20.0), correction="tapered"), gradient_of(MIXED))


def test_prompts_and_environments_are_context_and_the_end_of_sequence_token_is_trained():
    """The gradient equals that of the log-prob of the completions' tokens, EOS among them."""
    policy, each = random_policy(), group(1, (0.0, 1.0))
    total = torch.zeros(())
    for done, advantage in zip(each.completions, (-0.5, 0.5), strict=True):
        total = total - advantage * lone_logprobs(policy, each.prompt_ids, done.ids).sum()
    total = total / sum(len(c.ids) for c in each.completions)
    expected = torch.autograd.grad(total, list(policy.model.parameters()))
    found = gradient_of([each], changed(CONFIG, advantage="dr_grpo"))
    close(found, torch.cat([g.flatten() for g in expected]))
    spoken = [
        TrainingCompletion((7, *c.ids), (False, *c.trained), (0.0, *c.behaviour))
        for c in each.completions
    ]
    told = TrainingGroup((4, 5, 6), tuple(spoken), (0.0, 1.0), True)
    asked = TrainingGroup((4, 5, 6, 7), each.completions, (0.0, 1.0), True)
    assert_close(gradient_of([told]), gradient_of([asked]))


def test_what_is_longer_than_the_cap_is_trained_on_up_to_it():
    short = [replace(g, completions=tuple(c.first(3) for c in g.completions)) for g in MIXED]
    assert_close(gradient_of(MIXED, changed(CONFIG, max_completion_tokens=3)), gradient_of(short))


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_engines_logprobs_are_the_learners_at_equal_weights(correction, temperature):
    policy = random_policy(spread=0.1)
    prompt = policy.encode_prompt("1+1=")
    sampling = Sampling(temperature, max_new_tokens=12)
    (samples,) = TransformersEngine(policy, seed=0).generate([prompt], 8, sampling)
    done = tuple(TrainingCompletion.own(s.tokens) for s in samples)
    own = TrainingGroup(tuple(prompt), done, (1.0, *[0.0] * 7), True)
    stats = Learner(policy, CONFIG, temperature=temperature, correction=correction).update([own])
    assert stats.engine_gap < 1e-5
    assert (stats.ratio_low, stats.ratio_max) == pytest.approx((1.0, 1.0), abs=1e-4)
    assert stats.tokens_trained == sum(len(s.tokens.ids) for s in samples)
    assert not stats.skipped and policy.version == 1


def test_an_update_raises_the_odds_of_what_was_rewarded():
    policy, one = random_policy(), group(1, (0.0, 1.0))

    def odds():
        return [lone_logprobs(policy, one.prompt_ids, c.ids).sum().item() for c in one.completions]

    before = odds()
    Learner(policy, CONFIG).update([one])
    after = odds()
    assert after[0] < before[0] and after[1] > before[1]


def test_a_step_that_is_not_finite_is_refused_loudly_and_leaves_the_weights(caplog):
    policy = parts.spoil(random_policy())
    learner = Learner(policy, CONFIG)
    before, state = weights(policy), learner.state_dict()["optimizer"]["adam"]["state"]
    stats = learner.update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (True, 1, 0)
    assert torch.equal(weights(policy).nan_to_num(), before.nan_to_num())
    assert learner.state_dict()["optimizer"]["adam"]["state"] == state
    assert "step skipped" in caplog.text


def test_after_a_refused_step_training_goes_on_from_the_same_weights():
    policy, other = random_policy(), random_policy()
    uncapped = {"correction": "tis", "correction_options": {"cap": 1e38}}
    learner, refusing = (Learner(p, CONFIG, **uncapped) for p in (policy, other))
    assert refusing.update(behaving(MIXED, 1e9)).refused == 1
    for each in (learner, refusing):
        each.update(behaving(MIXED, 0.0))
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
    assert 3e-4 < (weights(policy) - before).abs().mean() < 4e-3
    assert learner.state_dict()["optimizer"]["masters"][0].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_float32_logprobs_and_gradients_near_those_of_full(dtype):
    found = []
    for policy in (random_policy(dtype=dtype, spread=0.1), random_policy(spread=0.1)):
        learner = Learner(policy, CONFIG)
        (batch,) = learner.batches(learner.rows(MIXED))
        with torch.no_grad():
            distribution = distributions(policy.model, batch, 0.7)
        assert distribution.dtype == torch.float32
        sums = distribution.exp().sum(-1)
        assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)
        found.append(token_logprobs(distribution, batch)[batch.mask])
    assert (found[0] - found[1]).abs().max() < 0.05
    learner = Learner(random_policy(dtype=dtype), CONFIG)
    optimizer, caught = learner.optimizer, []
    optimizer.step = lambda: caught.append(torch.cat([m.grad.flatten() for m in optimizer.masters]))
    learner.update(MIXED)
    (half,), full = caught, gradient_of(MIXED)
    assert half.dtype == torch.float32 and torch.cosine_similarity(half, full, dim=0) > 0.99
    assert half.norm() / full.norm() == pytest.approx(1.0, abs=0.05)


def test_every_layer_is_computed_once_more_for_the_same_gradient_and_only_there():
    close(gradient_of(MIXED, RECOMPUTED), gradient_of(MIXED))
    policy, runs = random_policy(), []
    learner = Learner(policy, RECOMPUTED)
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    batches = len(learner.batches(learner.rows(MIXED)))
    learner.update(MIXED)
    assert len(runs) == 2 * batches


def test_layers_that_drop_out_by_themselves_while_they_train_do_not():
    """OPT's do, and ask their own training mode."""
    sizes = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer = random_policy().tokenizer
    config = OPTConfig(vocab_size=len(tokenizer), word_embed_proj_dim=16, dropout=0.5, **sizes)
    stepped = []
    for learning in (CONFIG, RECOMPUTED):
        torch.manual_seed(0)
        policy = Policy(OPTForCausalLM(config).eval(), tokenizer, "opt")
        assert not Learner(policy, learning).update(MIXED).skipped
        stepped.append(weights(policy))
    close(*stepped)


def test_sampling_keeps_its_cache_after_an_update():
    written, greedy = [], Sampling(1.0, 12, greedy=True)
    for config in (CONFIG, RECOMPUTED):
        policy = random_policy()
        Learner(policy, config).update(MIXED)
        engine, prompt = TransformersEngine(policy, seed=0), policy.encode_prompt("1+1=")
        written.append([s.tokens.ids for s in engine.generate([prompt], 2, greedy)[0]])
        assert not any(module.training for module in policy.model.modules())
    assert written[0] == written[1]


def test_a_model_whose_layers_cannot_be_computed_again_is_refused_by_name():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    model.supports_gradient_checkpointing = False
    with pytest.raises(ConfigError, match=r"learner.gradient_checkpointing.*GPT2LMHeadModel"):
        GradientCheckpointing(model)


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole logits", "logits in parts"])
@pytest.mark.parametrize("correction", ["better", "tis"])
def test_a_micro_batch_neither_reads_nor_sends_any_number(in_parts, correction, monkeypatch):
    policy, nowhere, done = random_policy(), torch.device("meta"), Pass({})
    head = VocabularyHead.of(policy.model)
    monkeypatch.setattr(VocabularyHead, "of", lambda model: head)
    policy.model.to(nowhere)  # To read a number there raises.
    policy.device = nowhere
    with parts_of(7) if in_parts else nullcontext():
        learner = Learner(policy, CONFIG, correction=correction, decoupled=True)
        (batch,) = learner.batches(learner.rows(parts.HONEST))
        with counted_uploads() as uploads:
            learner.backward(batch, done)
    assert (len(done.losses), uploads.count) == (1, 0)


def test_the_log_probs_of_a_micro_batch_are_one_graph():
    learner = Learner(random_policy(), CONFIG)
    (batch,) = learner.batches(learner.rows(parts.HONEST))
    scores = TokenScores(random_policy().model, 1.0, 1)

    def logprobs(ids):
        return scores(replace(batch, input_ids=ids)).logprobs

    compiled = torch.compile(logprobs, fullgraph=True, backend="eager")
    assert_close(compiled(batch.input_ids), logprobs(batch.input_ids))
