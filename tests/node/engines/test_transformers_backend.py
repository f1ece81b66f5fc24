from collections import defaultdict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import MistralConfig

from node.engines.engine import BackendSettings, Request, Sampling
from node.engines.transformers import backend, decoding
from node.engines.transformers.backend import ContinuousDecoding
from node.engines.transformers.decoding import Decoding
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import FusedDecoder
from node.engines.weight_snapshot import Snapshot
from node.errors import NodeError
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens
from tests.support import SHAPE, assert_drawn_from, policy_of, random_policy

CAP = 40
PROMPTS = [(5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8), (9,) * 30, (5, 6, 8)]


class Writing:
    """A backend, and its output per request."""

    def __init__(self, folder, policy: Policy, max_rows: int = 8) -> None:
        self.snapshot = Snapshot(policy, as_checkpoint=False, place=folder)
        ends = {"stop_ids": policy.stop_ids, "context_length": policy.context_length}
        how = {"dtype": "float32", "device": "cpu", "seed": 0, "max_rows": max_rows, "options": {}}
        place = str(self.snapshot.folder)
        settings = BackendSettings(backend="transformers", folder=place, **ends, **how)
        self.backend = ContinuousDecoding.open(settings)
        self.ids, self.logprobs, self.versions = (defaultdict(list) for _ in range(3))
        self.finish: dict[int, Finish] = {}

    def take(self, written) -> None:
        for each in written:
            assert each.number not in self.finish
            self.ids[each.number] += each.ids
            self.logprobs[each.number] += each.logprobs
            self.versions[each.number] += [each.version] * len(each.ids)
            if each.finish is not None:
                self.finish[each.number] = each.finish

    def tokens(self, number: int) -> Tokens:
        return Tokens(*(tuple(each[number]) for each in (self.ids, self.logprobs, self.versions)))

    def submit(self, number, ids, room, temperature=1.0, *, greedy=False) -> None:
        self.backend.submit([Request(number, ids, room, temperature, greedy)])

    def submit_in_turn(self, *, greedy: bool = False) -> None:
        """Add a prompt at every fifth step, and generate all completions to the end."""
        for number, prompt in enumerate(PROMPTS):
            self.submit(number, prompt, CAP, greedy=greedy)
            self.steps(5)
        self.steps()

    def steps(self, count: int = 10_000) -> None:
        while self.backend.busy and count:
            self.take(self.backend.step())
            count -= 1

    def update(self, policy: Policy) -> None:
        self.snapshot.write(policy)
        self.take(self.backend.update())


def versions(count: int, **settings) -> list[Policy]:
    """Return policies of different seeds that never stop, with ascending versions."""
    policies = [random_policy(seed=seed, **settings) for seed in range(count)]
    for version, each in enumerate(policies):
        each.version, each.stop_ids = version, ()
    return policies


@pytest.fixture(scope="module")
def policy():
    made = random_policy(seed=5)
    made.stop_ids = tuple(range(0, 98, 14))
    return made


def greedy(policy: Policy) -> dict[tuple[int, ...], tuple[int, ...]]:
    sampling, engine = Sampling(max_new_tokens=CAP, greedy=True), TransformersEngine(policy, seed=0)
    return {each: engine.generate([each], 1, sampling)[0][0].tokens.ids for each in PROMPTS}


@pytest.fixture(scope="module")
def expected(policy):
    return greedy(policy)


# Functions of a step, and the number of rows in a call.
WORK = {
    "reading": (
        decoding,
        "read_all",
        lambda policy, prompts, more, worth: len(prompts) + len(more),
    ),
    "gathering": (decoding, "gathered", lambda shares: sum(len(each.rows) for each in shares)),
    "sampling": (decoding, "sample_tokens", lambda logits, *how: len(logits)),
    "decoding": (FusedDecoder, "step", lambda decoder, tokens, position: len(tokens)),
}


def run_out_once(monkeypatch, part: str) -> None:
    """Make the next call of this part with several rows run out of memory."""
    place, name, rows = WORK[part]
    work = getattr(place, name)

    def working(*given):
        if rows(*given) > 1:
            monkeypatch.setattr(place, name, work)
            raise torch.OutOfMemoryError
        return work(*given)

    monkeypatch.setattr(place, name, working)


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 3), st.integers(0, 12)),
    st.tuples(st.just("steps"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("update"), st.just(0), st.just(0)),
    st.tuples(st.just("run out"), st.sampled_from(sorted(WORK)), st.just(0)),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(ACTIONS, min_size=1, max_size=14),
    max_rows=st.integers(1, 6),
    worth=st.sampled_from([1, 60, 4096]),
)
def test_joins_and_interruptions_do_not_change_greedy_completions(
    tmp_path_factory, monkeypatch, policy, expected, actions, max_rows, worth
):
    monkeypatch.setattr(decoding, "PREFILL_WORTH", worth)
    monkeypatch.setattr(decoding, "DECODE_WORTH", worth)
    writing = Writing(tmp_path_factory.mktemp("engine"), policy, max_rows)
    wanted: dict[int, tuple[int, ...]] = {}
    for action, which, begun in actions:
        if action == "submit":
            prompt = PROMPTS[which]
            begun = min(begun, len(expected[prompt]) - 1)
            ids = (*prompt, *expected[prompt][:begun])
            writing.submit(len(wanted), ids, CAP - begun, greedy=True)
            wanted[len(wanted)] = expected[prompt][begun:]
        elif action == "steps":
            writing.steps(which)
        elif action == "run out":
            run_out_once(monkeypatch, which)
        else:
            writing.update(policy)
    writing.steps()
    assert {number: tuple(ids) for number, ids in writing.ids.items()} == wanted
    for number, ids in wanted.items():
        stopped = ids[-1] in policy.stop_ids
        assert writing.finish[number] is (Finish.STOP if stopped else Finish.LENGTH)
    writing.snapshot.remove()


def test_tokens_have_logprob_and_version_of_the_sampling_weights(tmp_path):
    policies = [random_policy(seed=seed, spread=0.1) for seed in range(3)]
    for version, each in enumerate(policies):
        each.version = version
    writing = Writing(tmp_path, policies[0])
    prompts = [(5, 6, 7), (5, 6, 7), tuple(range(20))]
    writing.backend.submit([Request(n, ids, 30, 0.8, False) for n, ids in enumerate(prompts)])
    for each in policies[1:]:
        writing.steps(7)
        writing.update(each)
    writing.steps()
    for number, prompt in enumerate(prompts):
        tokens = writing.tokens(number)
        assert {*tokens.versions} == {0, 1, 2} or len(tokens.ids) < 15
        assert_drawn_from(tokens, prompt, *policies, temperature=0.8)


def memory_for(monkeypatch, rows: int) -> list[int]:
    """Run out of memory above ``rows`` rows; return a list of the rows per step."""
    step, seen = Decoding.step, []

    def working(batch):
        seen.append(batch.left)
        if batch.left > rows:
            raise torch.OutOfMemoryError
        return step(batch)

    monkeypatch.setattr(Decoding, "step", working)
    return seen


def test_out_of_memory_halves_later_batches(tmp_path, monkeypatch, caplog, policy, expected):
    seen = memory_for(monkeypatch, 3)
    writing = Writing(tmp_path, policy)
    for number in range(12):
        writing.submit(number, PROMPTS[number % 4], CAP, greedy=True)
    writing.steps()
    wanted = {number: expected[PROMPTS[number % 4]] for number in range(12)}
    assert {number: tuple(ids) for number, ids in writing.ids.items()} == wanted
    assert seen[:2] == [8, 4] and max(seen[2:]) == 2
    assert "at most 2 are sampled together" in caplog.text


def test_generate_samples_in_halves_if_out_of_memory(monkeypatch, policy, expected):
    seen = memory_for(monkeypatch, 3)
    sampling, engine = Sampling(max_new_tokens=CAP, greedy=True), TransformersEngine(policy, seed=0)
    for groups in (1, 5):
        samples = engine.generate(PROMPTS, groups, sampling)
        ids = [[each.tokens.ids for each in group] for group in samples]
        assert ids == [[expected[prompt]] * groups for prompt in PROMPTS]
    assert [count for count in seen if count > 3] == [4], "later batches start with two"


def test_error_suggests_a_fix_if_one_completion_does_not_fit(tmp_path, monkeypatch, policy):
    memory_for(monkeypatch, 0)
    writing = Writing(tmp_path, policy)
    writing.submit(0, PROMPTS[0], CAP)
    engine = TransformersEngine(policy, seed=0)
    for sample in (
        writing.steps,
        lambda: engine.generate(PROMPTS, 2, Sampling(max_new_tokens=CAP)),
    ):
        with pytest.raises(NodeError, match=r"up to \d+ tokens.*engine\.max_new_tokens"):
            sample()


def test_pause_reports_partial_completions_and_stops(tmp_path, policy):
    writing = Writing(tmp_path, random_policy())
    writing.backend.submit([Request(n, (1, 2, n), CAP, 1.0, True) for n in range(12)])
    writing.steps(5)
    writing.take(writing.backend.pause())
    assert not writing.backend.busy
    assert {n: len(ids) for n, ids in writing.ids.items()} == dict.fromkeys(range(8), 5)
    assert writing.backend.step() == []


def test_sampled_requests_do_not_affect_greedy_ones(tmp_path, policy, expected):
    writing = Writing(tmp_path, policy)
    prompt = PROMPTS[0]
    jobs = [Request(n, prompt, CAP, (1.0, 0.5)[n % 2], n % 3 == 0) for n in range(12)]
    writing.backend.submit(jobs)
    writing.steps()
    assert set(writing.finish) == set(range(12))
    assert {tuple(writing.ids[number]) for number in range(0, 12, 3)} == {expected[prompt]}


def test_joining_request_is_prefilled_without_rereading_others(tmp_path):
    writing, read = Writing(tmp_path, *versions(1)), []
    writing.backend.policy.model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    writing.submit_in_turn()
    assert read == [len(prompt) for prompt in PROMPTS]
    assert {len(ids) for ids in writing.ids.values()} == {CAP}


def test_requests_join_with_a_sliding_window_cache(tmp_path):
    policy = policy_of(MistralConfig(**SHAPE, sliding_window=12), "mistral", 1)
    policy.stop_ids = (policy.eos_id,)
    writing = Writing(tmp_path, policy)
    writing.submit_in_turn(greedy=True)
    assert [tuple(writing.ids[number]) for number in range(4)] == [*greedy(policy).values()]


def test_weight_update_waits_no_longer_than_rereading_the_batch(tmp_path):
    first, second = versions(2)
    writing, delay = Writing(tmp_path, first), int(backend.READ_COST * 30)
    jobs = [Request(n, (5,) * 30, room, 1.0, False) for n, room in enumerate([20, 23, 60, 60])]
    writing.backend.submit(jobs)
    writing.steps(20)
    writing.update(second)
    writing.submit(4, (5,) * 30, 8)
    writing.steps()
    assert {len(set(writing.versions[n])) for n in (0, 1, 4)} == {1}, "nearly done or not started"
    assert set(writing.versions[4]) == {1}
    for number in (2, 3):
        assert writing.versions[number] == [0] * (20 + delay) + [1] * (40 - delay)


def test_pause_applies_waiting_weights(tmp_path):
    first, second = versions(2)
    writing = Writing(tmp_path, first)
    writing.submit(0, (5,) * 30, 60)
    writing.steps(8)
    writing.update(second)
    writing.take(writing.backend.pause())
    assert writing.versions[0] == [0] * 8
    writing.submit(1, (5,) * 30, 4)
    writing.steps()
    assert set(writing.versions[1]) == {1}
