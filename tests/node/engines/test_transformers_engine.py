import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import has_fused_step
from node.engines.transformers.kv_cache import alike, growing_cache
from node.engines.transformers.static_step import BLOCK, MANY_WORDS, sample_tokens
from node.policy.policy import Policy
from protocol.rollout import Finish
from tests.support import SHAPE, assert_drawn_from, generated, policy_of, random_policy

pytestmark = pytest.mark.usefixtures("each_decoding")

SIZES = st.sampled_from([MANY_WORDS, MANY_WORDS + 1, MANY_WORDS + BLOCK - 1, 50_257])


@given(words=SIZES, seed=st.integers(0, 1 << 30), spread=st.sampled_from([0.0, 1.0, 20.0]))
def test_large_vocabulary_sampling_matches_cumulative_search(words, seed, spread):
    logits = spread * torch.randn(4, words, generator=torch.Generator().manual_seed(seed))
    logits[0, words // 3 :] = float("-inf")
    random = torch.Generator().manual_seed(seed)
    tokens, logprobs = sample_tokens(logits, Sampling(), random.clone_state())
    point = torch.rand((4, 1), generator=random, dtype=torch.float64)
    exact = logits.log_softmax(-1)
    sums = exact.exp().cumsum(-1, dtype=torch.float64)
    assert torch.equal(tokens, torch.searchsorted(sums, point * sums[:, -1:], right=True))
    assert torch.equal(logprobs, exact.gather(-1, tokens))


def test_large_vocabulary_never_samples_impossible_tokens():
    logits = torch.full((2_000, MANY_WORDS + 3), float("-inf"))
    logits[:, [0, BLOCK - 1, BLOCK, MANY_WORDS + 2]] = 0.0
    tokens, _ = sample_tokens(logits, Sampling(), torch.Generator().manual_seed(0))
    counts = tokens[:, 0].bincount(minlength=MANY_WORDS + 3)
    assert counts.nonzero()[:, 0].tolist() == [0, BLOCK - 1, BLOCK, MANY_WORDS + 2]
    assert counts.max() < 600


TEXTS = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 9)), min_size=1, max_size=60)


def padding(lists, lengths, rows) -> int:
    pairs = zip(lists, [max(lengths[n] for n in chosen) for chosen in lists], strict=True)
    return sum(rows[n] * (most - lengths[n]) for chosen, most in pairs for n in chosen)


@given(texts=TEXTS, worth=st.integers(1, 5000))
def test_alike_partitions_texts_if_it_saves_enough_padding(texts, worth):
    lengths, rows = [t[0] for t in texts], [t[1] for t in texts]
    lists = alike(lengths, worth, rows)
    assert sorted(n for chosen in lists for n in chosen) == list(range(len(texts)))
    whole = padding([list(range(len(texts)))], lengths, rows)
    assert whole - padding(lists, lengths, rows) >= worth * (len(lists) - 1)
    assert len(lists) <= 1 + max(lengths).bit_length()


@given(texts=TEXTS)
def test_texts_are_padded_to_less_than_double_unless_cheap(texts):
    lengths = [t[0] for t in texts]
    for chosen in alike(lengths, 1):
        assert max(lengths[n] for n in chosen) < 2 * min(lengths[n] for n in chosen)
    assert alike(lengths, 1 << 30) == [list(range(len(texts)))], "one list, in order"


PROMPTS = ["2+2=", "What is the gcd of 12 and 18?", "spell", "7", "Reverse: abcdef"]
ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
CONFIGS = {
    "llama with biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama with yarn": LlamaConfig(**SHAPE, rope_parameters=ROPE),
    "qwen2": Qwen2Config(**SHAPE),
    "mistral with a sliding window": MistralConfig(**SHAPE, sliding_window=12),
    "gpt2": GPT2Config(vocab_size=98, n_embd=64, n_layer=2, n_head=2, initializer_range=0.4),
}
ARCHITECTURES = pytest.mark.parametrize("architecture", ["qwen3", *CONFIGS])


def tokens_of(groups) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens.ids for sample in group] for group in groups]


def build(architecture: str) -> Policy:
    if architecture == "qwen3":
        return random_policy()
    policy = policy_of(CONFIGS[architecture], architecture, 1)
    policy.stop_ids = (policy.eos_id,)
    return policy


@ARCHITECTURES
def test_greedy_decoding_of_a_ragged_batch_equals_generate_prompt_by_prompt(architecture):
    policy = build(architecture)
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    greedy = Sampling(max_new_tokens=24, greedy=True)
    samples = TransformersEngine(policy, seed=0).generate(prompts, 1, greedy)
    assert tokens_of(samples) == [[generated(policy, prompt, 24)] for prompt in prompts]
    split = TransformersEngine(policy, seed=0, max_rows=3).generate(prompts, 2, greedy)
    assert tokens_of(split) == [2 * group for group in tokens_of(samples)], "in smaller batches"


@ARCHITECTURES
def test_fused_step_is_used_only_for_supported_architectures(architecture):
    policy = build(architecture)
    cache = growing_cache(policy.model.config)
    policy.model(input_ids=torch.tensor([[1, 2]]), past_key_values=cache, use_cache=True)
    expected = architecture in {"qwen3", "llama with biases", "llama with yarn", "qwen2"}
    assert has_fused_step(policy.model, cache) is expected


@ARCHITECTURES
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@torch.no_grad()
def test_logprobs_equal_a_recomputed_log_softmax(architecture, temperature):
    policy = build(architecture)
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    sampling = Sampling(temperature=temperature, max_new_tokens=20)
    samples = TransformersEngine(policy, seed=3).generate(prompts, 3, sampling)
    for prompt, sample in ((p, s) for p, g in zip(prompts, samples, strict=True) for s in g):
        assert_drawn_from(sample.tokens, prompt, policy, temperature=temperature)


def test_finished_rows_leave_batch_without_changing_the_others():
    policy = random_policy(seed=5)
    policy.stop_ids = tuple(range(0, 98, 9))
    prompts = [policy.encode_prompt(f"{n} times {n}") for n in range(24)]
    engine, greedy = TransformersEngine(policy, seed=0), Sampling(max_new_tokens=30, greedy=True)
    together = engine.generate(prompts, 1, greedy)
    alone = [engine.generate([prompt], 1, greedy)[0] for prompt in prompts]
    assert tokens_of(together) == tokens_of(alone)
    assert len({len(group[0].tokens.ids) for group in together}) > 3
    for (sample,) in together:
        stops = [token in policy.stop_ids for token in sample.tokens.ids]
        assert not any(stops[:-1])
        assert sample.finish is (Finish.STOP if stops[-1] else Finish.LENGTH)


def test_eos_token_is_in_the_ids_but_not_in_the_text():
    policy = random_policy(seed=2, spread=0.02)
    engine = TransformersEngine(policy, seed=1)
    (group,) = engine.generate([[1, 2, 3]], 64, Sampling(max_new_tokens=100))
    stopped = [s for s in group if s.finish is Finish.STOP]
    assert stopped
    for sample in stopped:
        *ids, last = sample.tokens.ids
        assert last == policy.eos_id and policy.eos_id not in ids
        assert sample.text == policy.decode(ids)
    for told in (sample.tokens for sample in group):
        assert len(told.ids) == len(told.logprobs) == len(told.versions) <= 100


def test_restored_engine_samples_the_same_as_the_saved_one():
    policy, args = random_policy(spread=0.05), ([[1, 2]], 4, Sampling(max_new_tokens=16))
    engine, other = (TransformersEngine(policy, seed=seed) for seed in (4, 99))
    engine.generate(*args)
    state = engine.state_dict()
    expected = engine.generate(*args)
    other.load_state_dict(state)
    assert other.generate(*args) == expected != engine.generate(*args)


def test_random_state_of_another_device_restarts_with_a_warning(caplog):
    policy, args = random_policy(), ([[5, 6]], 2, Sampling(max_new_tokens=8))
    engine, fresh = (TransformersEngine(policy, seed=1) for _ in range(2))
    # A CUDA generator's state: seed and offset.
    engine.load_state_dict({"random": torch.zeros(16, dtype=torch.uint8)})
    assert "policy.device" in caplog.text and engine.generate(*args) == fresh.generate(*args)


def test_engine_uses_updated_weights_and_their_version():
    policy, other = random_policy(), random_policy(seed=7)
    engine, args = TransformersEngine(policy, seed=0), ([[5, 6, 7]], 1)
    greedy = Sampling(max_new_tokens=8, greedy=True)
    ((before,),) = engine.generate(*args, greedy)
    policy.model.load_state_dict(other.model.state_dict())
    policy.version = 3
    engine.update(policy)
    ((after,),) = engine.generate(*args, greedy)
    assert before.tokens.ids != after.tokens.ids == generated(other, [5, 6, 7], 8)
    assert set(before.tokens.versions) == {0} and set(after.tokens.versions) == {3}


def test_samples_follow_softmax_at_requested_temperature():
    logits, random = torch.tensor([2.0, 0.0, -1.0, float("-inf"), 1.0]), torch.Generator()
    random.manual_seed(0)
    tokens, logprobs = sample_tokens(logits.expand(40_000, -1), Sampling(temperature=2.0), random)
    expected = (logits / 2.0).softmax(-1)
    frequency = tokens[:, 0].bincount(minlength=5)
    assert_close(frequency / 40_000, expected, atol=0.01, rtol=0)
    assert frequency[3] == 0
    assert_close(logprobs[:, 0].exp(), expected[tokens[:, 0]])


def test_completion_ends_at_the_context_limit():
    policy = random_policy()
    policy.context_length = 20
    engine = TransformersEngine(policy, seed=0)
    long, short = engine.generate([[1] * 17, [1] * 5], 1, Sampling(max_new_tokens=64, greedy=True))
    assert len(long[0].tokens.ids) <= 3 and len(short[0].tokens.ids) <= 15
    assert short[0].tokens.ids == generated(policy, [1] * 5, 15)


@pytest.mark.parametrize("prompt", [[], [1] * 512])
def test_engine_rejects_empty_and_too_long_prompts(prompt):
    engine = TransformersEngine(random_policy(), seed=0)
    with pytest.raises(ValueError, match=f"a prompt of {len(prompt)} tokens"):
        engine.generate([prompt], 1, Sampling())


def test_half_precision_weights_give_full_precision_logprobs():
    policy = random_policy(dtype=torch.bfloat16)
    (group,) = TransformersEngine(policy, seed=0).generate([[1, 2]], 8, Sampling(max_new_tokens=8))
    values = torch.tensor([x for s in group for x in s.tokens.logprobs], dtype=torch.float32)
    assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"max_new_tokens": 0}])
def test_sampling_rejects_invalid_settings(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Sampling(**change)


def test_seeded_sampling_does_not_affect_the_engine_stream():
    policy = random_policy()
    prompts = [policy.encode_prompt(text) for text in PROMPTS]
    engine, other = (TransformersEngine(policy, seed=3, max_rows=4) for _ in range(2))
    own, seeded = Sampling(max_new_tokens=6), Sampling(max_new_tokens=6, seed=11)
    first = engine.generate(prompts, 2, seeded)
    outputs = [engine.generate(prompts, 2, own) for _ in range(2)]
    assert engine.generate(prompts, 2, seeded) == first
    assert outputs == [other.generate(prompts, 2, own) for _ in range(2)]
    assert torch.equal(engine.state_dict()["random"], other.state_dict()["random"])
    assert first not in (outputs[0], engine.generate(prompts, 2, Sampling(1.0, 6, seed=12)))
