import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from node.engines.engine import Sampling
from node.engines.transformers import kv_cache, static_step
from node.engines.transformers.decoding import Decoding
from node.engines.transformers.kv_cache import Continued
from node.engines.transformers.static_decoding import StaticDecoding
from node.engines.transformers.static_step import RING, Slots, StaticStep, length_bucket, row_bucket
from node.errors import ConfigError
from tests.library_privates import DataDependentOutputException, counted_kernels, without_numbers
from tests.support import SHAPE, policy_of

CONFIGS = {
    "llama": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32),
}
FAMILIES = pytest.mark.parametrize("family", CONFIGS)
GREEDY = Sampling(greedy=True)


def step_of(policy, rows=8, length=128) -> StaticStep:
    step = StaticStep(policy.model)
    step.reserve(rows, length)
    return step


@given(n=st.integers(1, 5000))
def test_buckets_fit_n_and_are_at_most_double(n):
    for bucket, least in ((row_bucket, 8), (length_bucket, 256)):
        assert n <= bucket(n) <= max(least, 2 * n)
        assert bucket(bucket(n)) == bucket(n)
    assert length_bucket(n) % 64 == 0, "attention kernels need multiples of 64"


@FAMILIES
@settings(max_examples=12)
@given(data=st.data())
@torch.inference_mode()
def test_joining_and_leaving_rows_get_the_same_tokens_as_alone(family, data):
    policy = policy_of(CONFIGS[family], family, 1)
    policy.stop_ids = tuple(range(0, 98, 7))
    step = StaticStep(policy.model)
    lengths = st.lists(st.integers(1, 40), min_size=1, max_size=5)
    counts, caps = st.integers(1, 4), st.integers(1, 70)
    for _ in range(2):  # The second batch reuses the slots, with other weights.
        decoding = StaticDecoding(step, policy, GREEDY, torch.Generator())
        asked, outputs = [], {}
        for _ in range(data.draw(st.integers(1, 3))):
            prompts = [
                torch.randint(1, 98, (n,), generator=torch.Generator().manual_seed(n)).tolist()
                for n in data.draw(lengths)
            ]
            numbers = [data.draw(counts) for _ in prompts]
            rows = [p for p, n in zip(prompts, numbers, strict=True) for _ in range(n)]
            capped = [data.draw(caps) for _ in rows]
            asked += zip(rows, capped, strict=True)
            results = decoding.join(prompts, numbers, capped)
            for _ in range(data.draw(st.integers(0, 20))):
                results += decoding.step() if decoding.left else []
            for each in results:
                outputs.setdefault(each.number, []).extend(each.ids)
        for each in drain(decoding):
            outputs.setdefault(each.number, []).extend(each.ids)
        assert [outputs[number] for number in range(len(asked))] == [
            alone(policy, prompt, cap) for prompt, cap in asked
        ]
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)


def alone(policy, prompt, cap) -> list[int]:
    decoding = Decoding(policy, GREEDY, torch.Generator())
    decoding.join([prompt], [1], [cap])
    return [token for each in drain(decoding) for token in each.ids]


@pytest.mark.parametrize("static", [True, False], ids=["slots", "batch"])
@torch.inference_mode()
def test_prefill_passes_stay_within_the_token_limit(static, monkeypatch):
    policy, read = policy_of(CONFIGS["llama"], "llama", 1), []
    prompts = [[n % 97 + 1] * (3 + n % 3) for n in range(10)]
    expected = [alone(policy, prompt, 4) for prompt in prompts]
    monkeypatch.setattr(kv_cache, "MOST_READ", 16)
    policy.model.register_forward_pre_hook(
        lambda _, given, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    decoding = (
        StaticDecoding(step_of(policy), policy, GREEDY, torch.Generator())
        if static
        else Decoding(policy, GREEDY, torch.Generator())
    )
    results = [*decoding.join(prompts, [1] * 10, [4] * 10), *drain(decoding)]
    assert sum(read) >= sum(map(len, prompts)) and max(read) <= 16
    outputs = {n: [t for each in results if each.number == n for t in each.ids] for n in range(10)}
    assert [*outputs.values()] == expected


@torch.inference_mode()
def test_continued_turns_of_different_lengths_fit_in_the_slots():
    policy = policy_of(CONFIGS["llama"], "llama", 1)
    policy.stop_ids = ()
    decoding = StaticDecoding(step_of(policy), policy, GREEDY, torch.Generator())
    prompts = [[n % 97 + 1 for n in range(length)] for length in (240, 20)]
    first = {0: [], 1: []}
    for each in [*decoding.join(prompts, [1, 1], [3, 3], lasting=[0, 1]), *drain(decoding)]:
        first[each.number] += each.ids
    asked = [[1], [2] * 200]  # Padded to one length, both caches would exceed a slot.
    rows = [Continued(decoding.paused[n], [first[n][-1], *asked[n]]) for n in range(2)]
    results = [*decoding.join([], [], [4, 4], rows), *drain(decoding)]
    for n, each in enumerate(results):
        whole = [*prompts[n], *first[n], *asked[n]]
        assert each.ids == alone(policy, whole, 4)


def drain(decoding) -> list:
    results = []
    while decoding.left:
        results += decoding.step()
    return results


@torch.inference_mode()
def test_graph_pointers_stay_valid_after_steps_and_weight_changes():
    policy = policy_of(CONFIGS["qwen3"], "qwen3", 1)
    step = step_of(policy)

    def pointers():
        tensors = [x for layer in step.layers for y in layer.copies for x in (y.weight, y.bias)]
        tensors += [layer.head_norm for layer in step.layers]
        tensors += [step.angles, *(getattr(step.slots, n) for n in NAMES)]
        return [each.data_ptr() for each in tensors if each is not None]

    before, random = pointers(), torch.Generator()
    for _ in range(2):
        decoding = StaticDecoding(step, policy, Sampling(), random)
        decoding.join([[1, 2, 3]], [8], [40] * 8)
        drain(decoding)
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    assert pointers() == before
    assert step.reads(policy.model)
    policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.clone())
    assert not step.reads(policy.model), "a graph would read the replaced weights"


NAMES = Slots.__slots__


@torch.inference_mode()
def test_unjoined_gates_use_less_memory_and_give_same_logits(monkeypatch):
    policy = policy_of(CONFIGS["llama"], "llama", 1)
    joined = step_of(policy)
    monkeypatch.setattr(static_step, "JOINED", 0)
    separate = step_of(policy)
    assert separate.bytes < joined.bytes
    for step in (joined, separate):
        step.slots.logits.copy_(torch.arange(98.0).expand(8, -1) / 9)
        step.step(8, 128, GREEDY)
    torch.testing.assert_close(separate.slots.logits, joined.slots.logits)


@FAMILIES
@torch.inference_mode()
def test_step_compiles_to_a_single_graph(family):
    step = step_of(policy_of(CONFIGS[family], family, 1))
    step.slots.logits.normal_()
    step.slots.point.uniform_()
    copy = step_of(policy_of(CONFIGS[family], family, 1))
    for name in NAMES:
        getattr(copy.slots, name).copy_(getattr(step.slots, name))
    compiled = torch.compile(StaticStep.step, fullgraph=True, backend="eager")
    for _ in range(3):
        step.step(8, 128, Sampling(temperature=0.7))
        compiled(copy, 8, 128, Sampling(temperature=0.7))
    for name in NAMES:
        torch.testing.assert_close(getattr(copy.slots, name), getattr(step.slots, name))


@FAMILIES
def test_step_has_no_data_dependent_reads_or_shapes(family):
    step = step_of(policy_of(CONFIGS[family], family, 1))
    with without_numbers() as fake, torch.no_grad():
        step.slots = Slots(*(fake(getattr(step.slots, name)) for name in NAMES))
        step.step(8, 128, Sampling())
        with pytest.raises(DataDependentOutputException):
            step.slots.position.tolist()


@pytest.mark.parametrize(("family", "most"), [("llama", 12), ("qwen2", 12), ("qwen3", 14)])
def test_step_launches_few_kernels_per_layer(family, most):
    def launches(layers):
        config = type(CONFIGS[family])(**{**SHAPE, "num_hidden_layers": layers})
        step = step_of(policy_of(config, family, 1))
        with torch.inference_mode(), counted_kernels() as counter:
            step.step(8, 128, Sampling())
        return counter.count

    one, three = launches(1), launches(3)
    assert (three - one) / 2 <= most
    assert one - (three - one) / 2 <= 20


@torch.inference_mode()
def test_slots_keep_their_contents_when_reserve_enlarges_them():
    policy = policy_of(CONFIGS["llama"], "llama", 1)
    step = step_of(policy)
    for name in NAMES:
        getattr(step.slots, name).random_(0, 2)
    before = Slots(*(getattr(step.slots, name).clone() for name in NAMES))
    step.reserve(9, 300)
    assert (len(step.slots.position), step.capacity) == (12, 512)
    assert torch.equal(step.slots.cache[:, :, :8, :, :256], before.cache)
    for new, old in zip(step.slots.rows, before.rows, strict=True):
        assert torch.equal(new[:8], old)
    assert step.slots.ids.shape[1] == RING


@pytest.mark.parametrize("lost", [torch.OutOfMemoryError("all taken"), None])
@pytest.mark.parametrize("says", ["CUDA error: out of memory", "CUDA error: capture failed"])
def test_capture_error_distinguishes_out_of_memory_from_failure(lost, says):
    error = RuntimeError(says)
    error.__context__ = lost
    ran_out = lost is not None or "out of memory" in says
    wanted = torch.OutOfMemoryError if ran_out else ConfigError
    assert type(static_step.not_recorded(error)) is wanted
