"""Chunked logits give the log-probs, entropies and gradients of full logits."""

import logging
from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GPT2Config, Qwen2Config

from node.config.learning import LearnerSection
from node.learner import logprobs
from node.learner.batches import Row, TrainingCompletion, micro_batches
from node.learner.learner import Learner
from node.learner.logprobs import TokenScores, VocabularyHead
from node.policy.policy import Policy
from tests.node.learner import test_micro_batching
from tests.node.learner.parts import CONFIG, MIXED, update
from tests.node.learner.test_micro_batching import ALWAYS, UPDATES
from tests.support import changed, random_policy

WORDS = 98
SHAPE = {**test_micro_batching.SHAPE, "head_dim": 16, "initializer_range": 0.3, "pad_token_id": 0}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
CONFIGS = {
    "tied": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "untied": Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "soft caps": Gemma2Config(**SHAPE, final_logit_softcapping=3.0),
    "scaled up": CohereConfig(**SHAPE, logit_scale=0.25),
    "scaled down": transformers.GraniteConfig(**SHAPE, logits_scaling=4.0),
    "another name for its decoder": GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2),
    "experts": transformers.OlmoeConfig(**{**SHAPE, "num_key_value_heads": 2}, **EXPERTS),
}


@contextmanager
def parts_of(positions, whole=0):
    """Compute logits of ``positions`` at a time if they exceed ``whole`` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "WHOLE_BYTES", whole)
        patch.setattr(logprobs, "LEAST_POSITIONS", 1)
        patch.setattr(logprobs, "CHUNK_BYTES", 4 * WORDS * positions)
        yield


@pytest.fixture
def in_parts():
    with parts_of(3):
        yield


def built(config, **settings):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, **settings).eval()


def row(*completions, first=0):
    done = tuple(
        TrainingCompletion(ids, tuple(n % 4 != 3 for n in range(len(ids)))) for ids in completions
    )
    return Row((5, 6, 7), done, (1.0,) * len(done), local=True, first=first)


ROWS = (
    row((9, 9, 9, 4)),
    row((1, 2, 3, 4, 5, 6, 7), first=1),
    row((8, 8), (8, 3), (20, 21, 22), first=2),
)


def scored(model, temperature):
    """Return log-probs and entropies, and the gradient of weighted log-probs."""
    (batch,) = micro_batches(ROWS, 1000, 0, model.device)
    result = TokenScores(model, temperature, 1000)(batch)
    (result.logprobs[batch.mask] * torch.linspace(-1.0, 2.0, batch.mask.sum())).sum().backward()
    gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return torch.cat([result.logprobs[batch.mask].detach(), result.entropies[batch.mask]]), gradient


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_logits_match_scores_and_gradients_of_full_logits(name, temperature):
    whole, expected = scored(built(CONFIGS[name]), temperature)
    with parts_of(3):
        model = built(CONFIGS[name])
        assert VocabularyHead.of(model) is not None
        parts, found = scored(model, temperature)
    assert_close(parts, whole, atol=1e-5, rtol=1e-5)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert_close(found[key] / scale, gradient / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", [None, 3])
def test_forbidden_token_does_not_change_other_scores(positions):
    forbidden = torch.nn.functional.one_hot(torch.tensor(WORDS - 1), WORDS).bool()

    def with_fill(value):
        model = built(CONFIGS["untied"])
        model.lm_head.register_forward_hook(lambda *given: given[2].masked_fill(forbidden, value))
        with parts_of(positions) if positions else nullcontext():
            assert not positions or VocabularyHead.of(model) is not None
            return scored(model, 1.0)

    (scores, gradient), (expected, other) = with_fill(-torch.inf), with_fill(-1e4)
    assert scores.isfinite().all()
    assert_close(scores, expected)
    for key, found in gradient.items():
        assert_close(found, other[key])


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("all taken"), RuntimeError("MPS backend out of memory (all)")]
)
def test_head_detection_propagates_out_of_memory_errors(error):
    model = built(CONFIGS[next(iter(CONFIGS))])
    model.forward = Mock(side_effect=error)
    with pytest.raises(type(error), match="all"):
        VocabularyHead.of(model)


def test_head_detection_returns_none_for_nan_logits():
    model = built(CONFIGS["untied"])
    model.lm_head.weight.data.fill_(torch.nan)
    assert VocabularyHead.of(model) is None, "NaN logits never compare as equal"


def test_chunked_micro_batches_add_up(in_parts):
    once, many = built(CONFIGS["tied"]), built(CONFIGS["tied"])
    gradients = []
    for model, batches in ((once, [ROWS]), (many, [[part] for part in ROWS])):
        scores = TokenScores(model, 1.0, 1000)
        for rows in batches:
            (batch,) = micro_batches(rows, 1000, 0, model.device)
            scores(batch).logprobs[batch.mask].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_logits_of_only_one_chunk_exist_at_a_time(in_parts):
    model, sizes = built(CONFIGS["untied"]), []
    model.lm_head.register_forward_hook(lambda *given: sizes.append(given[2].shape[:-1].numel()))
    scored(model, 1.0)
    assert max(sizes) <= 4  # The check at the start reads 4 positions.
    assert sizes.count(3) > 6


@settings(max_examples=25, deadline=None)
@given(**UPDATES, positions=st.integers(1, 40))
def test_chunked_logits_do_not_change_the_update(drawn, loss, how, budget, positions):
    config = changed(CONFIG, loss=loss, micro_batch_tokens=budget)
    learning = {"config": config, "sharing": ALWAYS, "correction": how}
    apart, expected = update(random_policy(), drawn, **learning)
    with parts_of(positions):
        gradient, stats = update(random_policy(), drawn, **learning)
    scale = max(1.0, float(apart.abs().max()))
    assert_close(gradient / scale, apart / scale, atol=1e-5, rtol=0)
    for name in ("loss", "grad_norm", "entropy", "ratio_median"):
        before = getattr(expected, name)
        near = None if before is None else pytest.approx(before, rel=1e-3, abs=1e-4)
        assert getattr(stats, name) == near, name


def test_chunked_logits_support_lora_and_gradient_checkpointing():
    from node.policy.lora import Adapter

    config, found = changed(CONFIG, gradient_checkpointing=True), []
    for whole in (1 << 40, 0):
        with parts_of(3, whole):
            base = random_policy()
            adapter = Adapter(base.model, rank=2, alpha=4)
            found.append(masters(Policy(base.model, base.tokenizer, "adapted", adapter), config))
    expected, gradient = map(torch.cat, found)
    assert expected.abs().max() > 1e-3
    assert_close(gradient, expected, atol=1e-5, rtol=1e-4)


def masters(policy, config):
    """Return flat gradients of the float32 master weights, as the optimizer gets them."""
    learner, caught = Learner(policy, config), []
    weights = learner.optimizer.masters
    learner.optimizer.step = lambda: caught.extend(w.grad.flatten().clone() for w in weights)
    learner.update(MIXED)
    return caught


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunked_logits_keep_half_precision_gradients_close(dtype):
    caught = []
    for whole in (0, 1 << 40):
        with parts_of(3, whole):
            caught.append(masters(random_policy(dtype=dtype, spread=0.1), CONFIG))
    for found, expected in zip(*caught, strict=True):
        assert float((found - expected).abs().max()) < 0.03 * float(expected.abs().max())


def test_learner_warns_and_keeps_whole_logits_of_custom_head(in_parts, caplog):
    policy = random_policy()
    base = policy.model.model

    class Afterwards(type(policy.model)):
        """Changes the logits after the head."""

        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + base.embed_tokens.weight[kwargs["input_ids"]].sum()
            return output

    policy.model.__class__ = Afterwards
    with caplog.at_level(logging.WARNING):
        learner = Learner(policy, LearnerSection())
    assert "Afterwards: its logits cannot be computed in parts" in caplog.text
    assert not learner.update(MIXED).skipped


def test_small_vocabularies_use_whole_logits_without_a_model_call():
    model = built(CONFIGS["untied"])
    model.register_forward_hook(lambda *_: pytest.fail("the model was asked"))
    assert not TokenScores(model, 1.0, 8192).in_parts(8192)


WINDOWS = {
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=16),
    "gemma3": transformers.Gemma3TextConfig(
        **SHAPE, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": transformers.Phi3Config(**SHAPE, sliding_window=16),
    "rotations by length": transformers.LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    ),
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*CONFIGS, *WINDOWS])
def test_scoring_skips_packed_row_search_and_keeps_logprobs(name, attention, monkeypatch):
    model = built({**CONFIGS, **WINDOWS}[name], attn_implementation=attention)
    ids = torch.randint(WORDS, (3, 60), generator=torch.Generator().manual_seed(0))
    done = [TrainingCompletion(tuple(line), (True,) * 60) for line in ids.tolist()]
    rows = [Row((1,), (each,), (1.0,), True) for each in done]
    (batch,) = micro_batches(rows, 1000, 0, model.device)
    expected = model(input_ids=batch.input_ids).logits.log_softmax(-1)
    finder = "transformers.masking_utils.find_packed_sequence_indices"
    monkeypatch.setattr(finder, lambda *_: pytest.fail("a GPU was waited for"))
    found = TokenScores(model, 1.0, 1)(batch, entropies=False).logprobs
    assert_close(found, expected.gather(2, ids[..., None])[..., 0])


def test_attention_mask_rows_are_aligned_to_8_elements():
    segments = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 2, 2, 2]])
    bias = logprobs.completion_bias(segments, torch.float32)
    assert bias.shape == (2, 1, 5, 5) and bias.stride(-1) == 1
    assert all(step % 8 == 0 for step in bias.stride()[:-1])
