from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from node.engines.engine import Sampling
from node.engines.transformers.decoding import sample_tokens
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import fits
from node.engines.transformers.kv_cache import growing_cache
from node.policy.policy import Policy
from protocol.rollout import Finish
from tests.support import SHAPE, character_tokenizer, lone_logprobs, random_policy

PROMPTS = ["2+2=", "What is the gcd of 12 and 18?", "spell", "7", "Reverse: abcdef"]
ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
CONFIGS = {
    "llama with biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama with yarn": LlamaConfig(**SHAPE, rope_parameters=ROPE),
    "qwen2": Qwen2Config(**SHAPE),
    "mistral with a sliding window": MistralConfig(**SHAPE, sliding_window=12),
    "gpt2": GPT2Config(vocab_size=98, n_embd=64, n_layer=2, n_head=2, initializer_range=0.4),
}


def policy_of(architecture: str) -> Policy:
    if architecture == "qwen3":
        return random_policy()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture])
    tokenizer = character_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return Policy(model, tokenizer, architecture)


def generated(policy: Policy, prompt: list[int], cap: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    output = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=cap
    )
    return tuple(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize("architecture", ["qwen3", *CONFIGS])
def test_greedy_decoding_of_a_ragged_batch_equals_generate_prompt_by_prompt(architecture):
    policy = policy_of(architecture)
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    engine = TransformersEngine(policy, seed=0)
    samples = engine.generate(prompts, 1, Sampling(max_new_tokens=24, greedy=True))
    for prompt, (sample,) in zip(prompts, samples, strict=True):
        assert sample.tokens.ids == generated(policy, prompt, 24)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("qwen3", True),
        ("llama with biases", True),
        ("llama with yarn", True),
        ("qwen2", True),
        ("mistral with a sliding window", False),
        ("gpt2", False),
    ],
)
def test_the_fused_step_is_used_only_where_it_computes_the_models_own_forward(
    architecture, expected
):
    policy = policy_of(architecture)
    cache = growing_cache(policy.model.config)
    policy.model(input_ids=torch.tensor([[1, 2]]), past_key_values=cache, use_cache=True)
    assert fits(policy.model, cache) is expected


@pytest.mark.parametrize("architecture", ["qwen3", *CONFIGS])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_recomputed_log_softmax(architecture, temperature):
    policy = policy_of(architecture)
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    engine = TransformersEngine(policy, seed=3)
    samples = engine.generate(prompts, 3, Sampling(temperature=temperature, max_new_tokens=20))
    for prompt, group in zip(prompts, samples, strict=True):
        for sample in group:
            with torch.no_grad():
                expected = lone_logprobs(policy, prompt, sample.tokens.ids, temperature)
            torch.testing.assert_close(
                torch.tensor(sample.tokens.logprobs), expected, atol=1e-4, rtol=0
            )


def test_rows_that_finish_leave_the_batch_and_the_rest_goes_on_unchanged():
    policy = random_policy(seed=5)
    policy.stop_ids = tuple(range(0, 98, 9))
    prompts = [policy.encode_prompt(f"{n} times {n}") for n in range(24)]
    engine = TransformersEngine(policy, seed=0)
    greedy = Sampling(max_new_tokens=30, greedy=True)
    together = engine.generate(prompts, 1, greedy)
    alone = [engine.generate([prompt], 1, greedy)[0] for prompt in prompts]
    assert [[s.tokens.ids for s in group] for group in together] == [
        [s.tokens.ids for s in g] for g in alone
    ]
    lengths = {len(group[0].tokens.ids) for group in together}
    assert len(lengths) > 3
    for (sample,) in together:
        stops = [token in policy.stop_ids for token in sample.tokens.ids]
        assert not any(stops[:-1])
        assert sample.finish is (Finish.STOP if stops[-1] else Finish.LENGTH)


def test_the_end_of_sequence_token_is_in_the_ids_and_not_in_the_text():
    policy = random_policy(seed=2, spread=0.02)
    engine = TransformersEngine(policy, seed=1)
    (group,) = engine.generate([[1, 2, 3]], 64, Sampling(max_new_tokens=100))
    stopped = [s for s in group if s.finish is Finish.STOP]
    assert stopped
    for sample in stopped:
        assert sample.tokens.ids[-1] == policy.eos_id
        assert policy.eos_id not in sample.tokens.ids[:-1]
        assert sample.text == policy.decode(sample.tokens.ids[:-1])
    for sample in group:
        assert (
            len(sample.tokens.ids)
            == len(sample.tokens.logprobs)
            == len(sample.tokens.versions)
            <= 100
        )


def test_splitting_the_work_into_smaller_batches_changes_no_greedy_completion():
    policy = random_policy()
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    greedy = Sampling(max_new_tokens=12, greedy=True)
    whole = TransformersEngine(policy, seed=0).generate(prompts, 2, greedy)
    split = TransformersEngine(policy, seed=0, max_rows=3).generate(prompts, 2, greedy)
    assert [[s.tokens.ids for s in g] for g in whole] == [[s.tokens.ids for s in g] for g in split]


def test_a_restored_engine_draws_what_the_saved_one_would_have_drawn():
    policy = random_policy(spread=0.05)
    sampling = Sampling(max_new_tokens=16)
    engine = TransformersEngine(policy, seed=4)
    engine.generate([[1, 2]], 4, sampling)
    state = engine.state_dict()
    expected = engine.generate([[1, 2]], 4, sampling)
    other = TransformersEngine(policy, seed=99)
    other.load_state_dict(state)
    assert other.generate([[1, 2]], 4, sampling) == expected
    assert engine.generate([[1, 2]], 4, sampling) != expected


def test_draws_of_another_kind_of_device_cannot_be_gone_on_with_and_begin_anew(caplog):
    policy = random_policy()
    engine, sampling = TransformersEngine(policy, seed=1), Sampling(max_new_tokens=8)
    # A CUDA generator's state: seed and offset.
    engine.load_state_dict({"random": torch.zeros(16, dtype=torch.uint8)})
    assert "policy.device" in caplog.text
    fresh = TransformersEngine(policy, seed=1)
    assert engine.generate([[5, 6]], 2, sampling) == fresh.generate([[5, 6]], 2, sampling)


def test_updated_weights_are_sampled_from_and_their_version_is_noted():
    policy = random_policy()
    engine = TransformersEngine(policy, seed=0)
    greedy = Sampling(max_new_tokens=8, greedy=True)
    before = engine.generate([[5, 6, 7]], 1, greedy)[0][0]
    other = random_policy(seed=7)
    policy.model.load_state_dict(other.model.state_dict())
    policy.version = 3
    engine.update(policy)
    after = engine.generate([[5, 6, 7]], 1, greedy)[0][0]
    assert after.tokens.ids != before.tokens.ids
    assert after.tokens.ids == generated(other, [5, 6, 7], 8)
    assert set(before.tokens.versions) == {0}
    assert set(after.tokens.versions) == {3}


def test_draws_follow_the_softmax_at_the_temperature_asked_for():
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf"), 1.0])
    sampling = Sampling(temperature=2.0)
    random = torch.Generator().manual_seed(0)
    tokens, logprobs = sample_tokens(logits.expand(40_000, -1), sampling, random)
    expected = (logits / 2.0).softmax(-1)
    frequency = tokens[:, 0].bincount(minlength=5)
    torch.testing.assert_close(frequency / 40_000, expected, atol=0.01, rtol=0)
    assert frequency[3] == 0
    torch.testing.assert_close(logprobs[:, 0].exp(), expected[tokens[:, 0]])


def test_a_completion_ends_where_the_context_does():
    policy = random_policy()
    policy.context_length = 20
    engine = TransformersEngine(policy, seed=0)
    long, short = engine.generate([[1] * 17, [1] * 5], 1, Sampling(max_new_tokens=64, greedy=True))
    assert len(long[0].tokens.ids) <= 3
    assert len(short[0].tokens.ids) <= 15
    assert short[0].tokens.ids == generated(policy, [1] * 5, 15)


@pytest.mark.parametrize("prompt", [[], [1] * 512])
def test_a_prompt_that_leaves_no_room_is_refused_by_name(prompt):
    engine = TransformersEngine(random_policy(), seed=0)
    with pytest.raises(ValueError, match=f"a prompt of {len(prompt)} tokens"):
        engine.generate([prompt], 1, Sampling())


def test_half_precision_weights_give_full_precision_logprobs():
    policy = random_policy(dtype=torch.bfloat16)
    (group,) = TransformersEngine(policy, seed=0).generate([[1, 2]], 8, Sampling(max_new_tokens=8))
    values = torch.tensor([x for s in group for x in s.tokens.logprobs], dtype=torch.float32)
    assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"max_new_tokens": 0}])
def test_impossible_sampling_is_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Sampling(**change)


def test_a_seed_begins_a_stream_that_the_engines_own_does_not_notice() -> None:
    policy = random_policy()
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    engine, other = (TransformersEngine(policy, seed=3, max_rows=4) for _ in range(2))
    own, seeded = Sampling(max_new_tokens=6), Sampling(max_new_tokens=6, seed=11)
    first = engine.generate(prompts, 2, seeded)
    written = [engine.generate(prompts, 2, own) for _ in range(2)]
    assert engine.generate(prompts, 2, seeded) == first
    assert written == [other.generate(prompts, 2, own) for _ in range(2)]
    assert torch.equal(engine.state_dict()["random"], other.state_dict()["random"])
    assert first not in (written[0], engine.generate(prompts, 2, Sampling(1.0, 6, seed=12)))
