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
    """Return the groups without behavior log-probs."""
    return [parts.with_completions(each, behaviour=None) for each in groups]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 1.0]), max_size=3), st.randoms())
def test_uninformative_groups_affect_only_the_denominator(levels, shuffler):
    mixed = [*MIXED, *[group(10 + i, (level,) * 4) for i, level in enumerate(levels)]]
    shuffler.shuffle(mixed)
    close(gradient_of(mixed) * len(mixed) / len(MIXED), gradient_of(MIXED))


def test_skipping_uninformative_groups_equals_training_on_them():
    """Equal rewards and rewards that differ by 1e-12 give the same gradient."""
    idle = group(10, (0.5,) * 4)
    nearly = replace(idle, rewards=(0.5, 0.5, 0.5, 0.5 + 1e-12))
    close(gradient_of([*MIXED, idle]), gradient_of([*MIXED, nearly]), rtol=0)


def test_learner_skips_uninformative_update():
    policy = random_policy()
    learner = Learner(policy, CONFIG)
    before = weights(policy)
    stats = learner.update([group(1, (1.0, 1.0)), group(2, (0.0, 0.0, 0.0))])
    assert stats.skipped
    assert (stats.groups_informative, stats.tokens_trained, stats.refused) == (0, 0, 0)
    assert policy.version == 0 and torch.equal(weights(policy), before)


def test_only_tis_correction_uses_known_behavior_logprobs():
    plain = gradient_of(MIXED)
    assert_close(gradient_of(NEAR, correction="none"), plain)
    near(gradient_of(NEAR, correction="tis"), plain * 1.6487)
    near(gradient_of(FAR, correction="tis"), plain * TruncatedWeights.Options().cap)
    assert_close(gradient_of(silent(MIXED), correction="tis"), plain)


def test_decoupled_loss_weighs_stale_local_tokens_but_not_peer_tokens():
    plain = gradient_of(MIXED)
    near(gradient_of(NEAR, **DECOUPLED), plain * 1.6487)
    assert not gradient_of(FAR, **DECOUPLED).any()
    clamped = gradient_of(FAR, changed(CONFIG, stale="clamp"), **DECOUPLED)
    near(clamped, plain * CONFIG.importance_cap)
    for correction in CORRECTIONS:
        how = {"correction": correction, "spread": parts.EVEN}
        stale = gradient_of(external(FAR), decoupled=True, **how)
        assert_close(stale, gradient_of(external(FAR), **how))


def test_author_claims_never_raise_a_peer_token_weight():
    plain = gradient_of(silent(external(MIXED)), correction="tis")
    assert_close(gradient_of(external(FAR), correction="tis"), plain)
    near(gradient_of(behaving(external(MIXED), -0.5), correction="tis"), plain * 0.6065)


@pytest.mark.parametrize("loss", parts.LOSSES)
def test_logprobs_of_minus_65504_have_no_effect(loss):
    config, absurd = changed(CONFIG, loss=loss), external(behaving(MIXED, 65504.0))
    for correction in CORRECTIONS:
        assert_close(
            gradient_of(absurd, config, parts.EVEN, correction=correction),
            gradient_of(silent(absurd), config, parts.EVEN, correction=correction),
        )


@pytest.mark.parametrize("loss", parts.LOSSES)
def test_group_weight_does_not_depend_on_completion_count(loss):
    """Repeating all answers of a group eight times does not change the gradient."""
    config, first = changed(CONFIG, loss=loss, advantage="dr_grpo"), MIXED[0]
    fat = replace(first, completions=first.completions * 8, rewards=first.rewards * 8)
    near(gradient_of([fat, *MIXED[1:]], config), gradient_of(MIXED, config))


def test_update_gradient_is_the_mean_of_group_gradients():
    close(gradient_of(MIXED), torch.stack([gradient_of([each]) for each in MIXED]).mean(0))


def test_versions_proximal_policy_moves_drift_from_weight_to_ratio():
    """The product of weight and ratio is the same; only the clipping differs."""
    open_clip = changed(CONFIG, clip_low=1.0, clip_high=9.0, importance_cap=9.0)
    told = changed(open_clip, proximal_policy="versions")
    whole = gradient_of(NEAR, open_clip, **DECOUPLED)
    for version in (0, -1):
        close(gradient_of(parts.dated(NEAR, version), told, **DECOUPLED), whole)
    clipped = changed(CONFIG, proximal_policy="versions")
    assert not torch.allclose(gradient_of(parts.dated(NEAR, 0), clipped, **DECOUPLED), whole)


def test_update_reports_staleness_ratios_and_masking():
    groups = parts.dated(behaving(MIXED[:1], 0.0), 5) + parts.dated(behaving(MIXED[1:], -3.0), 3)
    stats = Learner(parts.policy_at(5), CONFIG, decoupled=True).update(groups)
    tokens = [sum(len(c.ids) for g in part for c in g.completions) for part in (groups[:1], groups)]
    assert stats.staleness == (tokens[0], 0, tokens[1] - tokens[0])
    assert stats.logprob_mismatch < 1e-5, "the mismatch ignores tokens of other versions"
    assert (stats.ratio_low, stats.ratio_high) == pytest.approx((0.0498, 1.0), rel=1e-3)
    assert stats.masked_fraction == 0
    assert Learner(random_policy(), CONFIG, decoupled=True).update(FAR).masked_fraction == 1


def test_stats_ignore_logprobs_claimed_by_peers():
    local = parts.dated(behaving([group(7, (0.0, 1.0))], 0.0), 0)
    stats = Learner(random_policy(), CONFIG).update([*external(behaving(MIXED, 65504.0)), *local])
    told = (stats.ratio_low, stats.ratio_high, stats.ratio_max)
    assert told == pytest.approx((1.0,) * 3, rel=1e-3)


def test_tapered_correction_drops_unlikely_wrong_peer_answers():
    """The author claims far higher log-probs for these answers."""
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


def test_only_completion_tokens_including_eos_are_trained():
    """Compare with the gradient of the completions' log-probs, EOS included."""
    policy, each = random_policy(), group(1, (0.0, 1.0))
    total = torch.zeros(())
    for done, advantage in zip(each.completions, (-0.5, 0.5), strict=True):
        total = total - advantage * lone_logprobs(policy, each.prompt_ids, done.ids).sum()
    total = total / sum(len(c.ids) for c in each.completions)
    expected = torch.autograd.grad(total, list(policy.model.parameters()))
    found = gradient_of([each], changed(CONFIG, advantage="dr_grpo"))
    close(found, torch.cat([g.flatten() for g in expected]))
    prefixed = [
        TrainingCompletion((7, *c.ids), (False, *c.trained), (0.0, *c.behaviour))
        for c in each.completions
    ]
    told = TrainingGroup((4, 5, 6), tuple(prefixed), (0.0, 1.0), True)
    asked = TrainingGroup((4, 5, 6, 7), each.completions, (0.0, 1.0), True)
    assert_close(gradient_of([told]), gradient_of([asked]))


def test_learner_truncates_long_completions():
    short = [replace(g, completions=tuple(c.first(3) for c in g.completions)) for g in MIXED]
    assert_close(gradient_of(MIXED, changed(CONFIG, max_completion_tokens=3)), gradient_of(short))


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_engine_and_learner_logprobs_match_at_equal_weights(correction, temperature):
    policy = random_policy(spread=0.1)
    prompt = policy.encode_prompt("1+1=")
    sampling = Sampling(temperature, max_new_tokens=12)
    (samples,) = TransformersEngine(policy, seed=0).generate([prompt], 8, sampling)
    done = tuple(TrainingCompletion.local(s.tokens) for s in samples)
    local = TrainingGroup(tuple(prompt), done, (1.0, *[0.0] * 7), True)
    stats = Learner(policy, CONFIG, temperature=temperature, correction=correction).update([local])
    assert stats.logprob_mismatch < 1e-5
    assert (stats.ratio_low, stats.ratio_max) == pytest.approx((1.0, 1.0), abs=1e-4)
    assert stats.tokens_trained == sum(len(s.tokens.ids) for s in samples)
    assert not stats.skipped and policy.version == 1


def test_update_raises_probability_of_rewarded_answer():
    policy, one = random_policy(), group(1, (0.0, 1.0))

    def odds():
        return [lone_logprobs(policy, one.prompt_ids, c.ids).sum().item() for c in one.completions]

    before = odds()
    Learner(policy, CONFIG).update([one])
    after = odds()
    assert after[0] < before[0] and after[1] > before[1]


def test_learner_logs_and_skips_a_nonfinite_step(caplog):
    policy = parts.spoil(random_policy())
    learner = Learner(policy, CONFIG)
    before, state = weights(policy), learner.state_dict()["optimizer"]["adam"]["state"]
    stats = learner.update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (True, 1, 0)
    assert torch.equal(weights(policy).nan_to_num(), before.nan_to_num())
    assert learner.state_dict()["optimizer"]["adam"]["state"] == state
    assert "step skipped" in caplog.text


def test_training_continues_from_same_weights_after_refused_step():
    policy, other = random_policy(), random_policy()
    uncapped = {"correction": "tis", "correction_options": {"cap": 1e38}}
    learner, refusing = (Learner(p, CONFIG, **uncapped) for p in (policy, other))
    assert refusing.update(behaving(MIXED, 1e9)).refused == 1
    for each in (learner, refusing):
        each.update(behaving(MIXED, 0.0))
    assert torch.equal(weights(other), weights(policy))


def test_restored_learner_takes_the_same_step_as_the_saved_one():
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


def test_master_weights_keep_steps_too_small_for_bfloat16():
    policy = random_policy(dtype=torch.bfloat16, spread=1.0)
    learner = Learner(policy, LearnerSection(lr=1e-4))
    before = weights(policy)
    for _ in range(30):
        learner.update(MIXED)
    assert 3e-4 < (weights(policy) - before).abs().mean() < 4e-3
    assert learner.state_dict()["optimizer"]["masters"][0].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_model_has_float32_logprobs_and_close_gradients(dtype):
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


def test_checkpointing_runs_layers_twice_and_keeps_the_gradient():
    close(gradient_of(MIXED, RECOMPUTED), gradient_of(MIXED))
    policy, runs = random_policy(), []
    learner = Learner(policy, RECOMPUTED)
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    batches = len(learner.batches(learner.rows(MIXED)))
    learner.update(MIXED)
    assert len(runs) == 2 * batches


def test_gradient_checkpointing_does_not_enable_dropout():
    """OPT layers apply dropout if their own ``training`` flag is set."""
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


def test_checkpointing_does_not_change_sampling():
    outputs, greedy = [], Sampling(1.0, 12, greedy=True)
    for config in (CONFIG, RECOMPUTED):
        policy = random_policy()
        Learner(policy, config).update(MIXED)
        engine, prompt = TransformersEngine(policy, seed=0), policy.encode_prompt("1+1=")
        outputs.append([s.tokens.ids for s in engine.generate([prompt], 2, greedy)[0]])
        assert not any(module.training for module in policy.model.modules())
    assert outputs[0] == outputs[1]


def test_learner_rejects_model_without_checkpointing_support():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    model.supports_gradient_checkpointing = False
    with pytest.raises(ConfigError, match=r"learner.gradient_checkpointing.*GPT2LMHeadModel"):
        GradientCheckpointing(model)


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole logits", "logits in parts"])
@pytest.mark.parametrize("correction", ["better", "tis"])
def test_micro_batch_avoids_host_device_transfers(in_parts, correction, monkeypatch):
    policy, nowhere, done = random_policy(), torch.device("meta"), Pass({})
    head = VocabularyHead.of(policy.model)
    monkeypatch.setattr(VocabularyHead, "of", lambda model: head)
    policy.model.to(nowhere)  # Reading a value from the meta device raises.
    policy.device = nowhere
    with parts_of(7) if in_parts else nullcontext():
        learner = Learner(policy, CONFIG, correction=correction, decoupled=True)
        (batch,) = learner.batches(learner.rows(parts.HONEST))
        with counted_uploads() as uploads:
            learner.backward(batch, done)
    assert (len(done.losses), uploads.count) == (1, 0)


def test_micro_batch_logprobs_compile_to_one_graph():
    learner = Learner(random_policy(), CONFIG)
    (batch,) = learner.batches(learner.rows(parts.HONEST))
    scores = TokenScores(random_policy().model, 1.0, 1)

    def logprobs(ids):
        return scores(replace(batch, input_ids=ids)).logprobs

    compiled = torch.compile(logprobs, fullgraph=True, backend="eager")
    assert_close(compiled(batch.input_ids), logprobs(batch.input_ids))
