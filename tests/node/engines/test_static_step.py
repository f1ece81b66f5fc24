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
def test_buckets_hold_what_is_asked_and_are_few(n):
    for bucket, least in ((row_bucket, 8), (length_bucket, 256)):
        assert n <= bucket(n) <= max(least, 2 * n)
        assert bucket(bucket(n)) == bucket(n)
    assert length_bucket(n) % 64 == 0, "as attention kernels want it"


@FAMILIES
@settings(max_examples=12)
@given(data=st.data())
@torch.inference_mode()
def test_rows_that_join_and_leave_get_the_tokens_that_they_get_alone(family, data):
    policy = policy_of(CONFIGS[family], family, 1)
    policy.stop_ids = tuple(range(0, 98, 7))
    step = StaticStep(policy.model)
    lengths = st.lists(st.integers(1, 40), min_size=1, max_size=5)
    counts, caps = st.integers(1, 4), st.integers(1, 70)
    for _ in range(2):  # The second batch finds the slots of the first, and other weights.
        decoding = StaticDecoding(step, policy, GREEDY, torch.Generator())
        asked, found = [], {}
        for _ in range(data.draw(st.integers(1, 3))):
            prompts = [
                torch.randint(1, 98, (n,), generator=torch.Generator().manual_seed(n)).tolist()
                for n in data.draw(lengths)
            ]
            numbers = [data.draw(counts) for _ in prompts]
            rows = [p for p, n in zip(prompts, numbers, strict=True) for _ in range(n)]
            capped = [data.draw(caps) for _ in rows]
            asked += zip(rows, capped, strict=True)
            written = decoding.join(prompts, numbers, capped)
            for _ in range(data.draw(st.integers(0, 20))):
                written += decoding.step() if decoding.left else []
            for each in written:
                found.setdefault(each.number, []).extend(each.ids)
        for each in ended(decoding):
            found.setdefault(each.number, []).extend(each.ids)
        assert [found[number] for number in range(len(asked))] == [
            alone(policy, prompt, cap) for prompt, cap in asked
        ]
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)


def alone(policy, prompt, cap) -> list[int]:
    decoding = Decoding(policy, GREEDY, torch.Generator())
    decoding.join([prompt], [1], [cap])
    return [token for each in ended(decoding) for token in each.ids]


@pytest.mark.parametrize("static", [True, False], ids=["slots", "batch"])
@torch.inference_mode()
def test_no_forward_pass_over_prompts_reads_more_tokens_than_it_may(static, monkeypatch):
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
    written = [*decoding.join(prompts, [1] * 10, [4] * 10), *ended(decoding)]
    assert sum(read) >= sum(map(len, prompts)) and max(read) <= 16
    found = {n: [t for each in written if each.number == n for t in each.ids] for n in range(10)}
    assert [*found.values()] == expected


@torch.inference_mode()
def test_turns_that_go_on_by_different_lengths_fit_where_their_longest_row_does():
    policy = policy_of(CONFIGS["llama"], "llama", 1)
    policy.stop_ids = ()
    decoding = StaticDecoding(step_of(policy), policy, GREEDY, torch.Generator())
    prompts = [[n % 97 + 1 for n in range(length)] for length in (240, 20)]
    first = {0: [], 1: []}
    for each in [*decoding.join(prompts, [1, 1], [3, 3], lasting=[0, 1]), *ended(decoding)]:
        first[each.number] += each.ids
    asked = [[1], [2] * 200]  # Together the cache of both is longer than any slot.
    rows = [Continued(decoding.paused[n], [first[n][-1], *asked[n]]) for n in range(2)]
    written = [*decoding.join([], [], [4, 4], rows), *ended(decoding)]
    for n, each in enumerate(written):
        whole = [*prompts[n], *first[n], *asked[n]]
        assert each.ids == alone(policy, whole, 4)


def ended(decoding) -> list:
    written = []
    while decoding.left:
        written += decoding.step()
    return written


@torch.inference_mode()
def test_what_a_graph_points_to_stays_in_place_through_steps_and_changed_weights():
    policy = policy_of(CONFIGS["qwen3"], "qwen3", 1)
    step = step_of(policy)

    def pointed():
        held = [x for layer in step.layers for y in layer.copies for x in (y.weight, y.bias)]
        held += [layer.head_norm for layer in step.layers]
        held += [step.angles, *(getattr(step.slots, n) for n in NAMES)]
        return [each.data_ptr() for each in held if each is not None]

    before, random = pointed(), torch.Generator()
    for _ in range(2):
        decoding = StaticDecoding(step, policy, Sampling(), random)
        decoding.join([[1, 2, 3]], [8], [40] * 8)
        ended(decoding)
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    assert pointed() == before
    assert step.reads(policy.model)
    policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.clone())
    assert not step.reads(policy.model), "a graph would read what is not the model's any more"


NAMES = Slots.__slots__


@torch.inference_mode()
def test_a_large_model_has_no_copy_of_its_gates_and_computes_the_same(monkeypatch):
    policy = policy_of(CONFIGS["llama"], "llama", 1)
    joined = step_of(policy)
    monkeypatch.setattr(static_step, "JOINED", 0)
    apart = step_of(policy)
    assert apart.bytes < joined.bytes
    for step in (joined, apart):
        step.slots.logits.copy_(torch.arange(98.0).expand(8, -1) / 9)
        step.step(8, 128, GREEDY)
    torch.testing.assert_close(apart.slots.logits, joined.slots.logits)


@FAMILIES
@torch.inference_mode()
def test_a_step_is_one_graph_without_a_break(family):
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
def test_a_step_reads_no_number_back_and_knows_every_shape(family):
    step = step_of(policy_of(CONFIGS[family], family, 1))
    with without_numbers() as fake, torch.no_grad():
        step.slots = Slots(*(fake(getattr(step.slots, name)) for name in NAMES))
        step.step(8, 128, Sampling())
        with pytest.raises(DataDependentOutputException):
            step.slots.position.tolist()


@pytest.mark.parametrize(("family", "most"), [("llama", 12), ("qwen2", 12), ("qwen3", 14)])
def test_a_step_launches_few_kernels_a_layer(family, most):
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
def test_slots_keep_what_they_hold_when_there_have_to_be_more_and_longer_ones():
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
def test_memory_that_runs_out_in_recording_is_told_from_a_step_that_cannot_be_recorded(lost, says):
    error = RuntimeError(says)
    error.__context__ = lost
    ran_out = lost is not None or "out of memory" in says
    wanted = torch.OutOfMemoryError if ran_out else ConfigError
    assert type(static_step.not_recorded(error)) is wanted
