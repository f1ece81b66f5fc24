from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from node.engines.engine import Sampling, SamplingRequest
from node.engines.transformers import backend
from node.engines.transformers.decoding import Decoding
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from tests.node.engines import test_transformers_backend
from tests.node.engines.test_transformers_engine import CONFIGS
from tests.support import SHAPE, assert_drawn_from, policy_of, random_policy

pytestmark = pytest.mark.usefixtures("each_decoding")

CAP = 24
GREEDY = Sampling(max_new_tokens=CAP, greedy=True)
PROMPTS = [*test_transformers_backend.PROMPTS, (7,) * 3]


def stopping(policy: Policy) -> Policy:
    policy.stop_ids = tuple(range(0, 98, 14))
    return policy


@pytest.fixture(scope="module")
def policy():
    return stopping(random_policy(seed=5))


def turns(engine, answers: Sequence[Sequence[int]], sampling=GREEDY) -> list:
    """Return each prompt's turns: the full prompt and its sample."""
    ids = {key: [*prompt] for key, prompt in enumerate(PROMPTS)}
    told = {key: [] for key in ids}
    engine.submit([SamplingRequest(k, tuple(ids[k]), lasts=True) for k in ids], sampling)
    active = set(ids)
    while active:
        again = []
        for key, sample in engine.poll(1.0):
            told[key].append((tuple(ids[key]), sample))
            if len(told[key]) > len(answers):
                engine.abort([key])
                active.remove(key)
                continue
            answer = [(each + key) % 98 for each in answers[len(told[key]) - 1]]
            ids[key] += [*sample.tokens.ids, *answer]
            again.append(SamplingRequest(key, tuple(ids[key]), lasts=True))
        if again:
            engine.submit(again, sampling)
    return list(told.values())


def regenerate(policy: Policy, prompt: Sequence[int]) -> tuple[int, ...]:
    ((sample,),) = TransformersEngine(policy, seed=0).generate([prompt], 1, GREEDY)
    return sample.tokens.ids


ANSWERS = st.lists(st.lists(st.integers(0, 97), min_size=1, max_size=9), min_size=1, max_size=3)


def ids_of(told) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens.ids for _, sample in each] for each in told]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(answers=ANSWERS, max_rows=st.integers(1, 6))
def test_greedy_turns_equal_generation_from_the_full_prompt(policy, answers, max_rows):
    for told in turns(TransformersEngine(policy, seed=0, max_rows=max_rows), answers):
        assert len(told) == len(answers) + 1
        assert all(sample.tokens.ids == regenerate(policy, prompt) for prompt, sample in told)


@pytest.mark.parametrize("architecture", ["llama", *CONFIGS])
def test_later_turns_have_correct_logprobs_for_every_cache(architecture):
    config = CONFIGS.get(architecture, LlamaConfig(**SHAPE))
    policy = stopping(policy_of(config, architecture, 1))
    sampling = Sampling(max_new_tokens=CAP, seed=3)
    told = turns(TransformersEngine(policy, seed=0), [[4, 5, 6, 7], [9]], sampling)
    for prompt, sample in (turn for each in told for turn in each):
        assert_drawn_from(sample.tokens, prompt, policy)


def test_turns_read_only_new_text(policy):
    widths = []
    hook = policy.model.register_forward_pre_hook(
        lambda _, __, inputs: widths.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    told = turns(TransformersEngine(policy, seed=0), [[1, 2], [3]])
    hook.remove()
    longest = max(len(prompt) for prompt in PROMPTS)
    assert widths and widths[0] == longest
    assert all(width <= 3 for width in widths[1:] if width != longest)
    assert sum(len(each) for each in told) == 3 * len(PROMPTS)


class Late(Decoding):
    """Checks for ended rows at every eighth step only, as on a GPU."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._on_cpu = False


def test_tokens_decoded_past_the_end_of_a_turn_are_discarded(policy, monkeypatch):
    answers = [[1, 2], [3, 4, 5]]
    expected = ids_of(turns(TransformersEngine(policy, seed=0), answers))
    monkeypatch.setattr(backend, "Decoding", Late)
    assert ids_of(turns(TransformersEngine(policy, seed=0), answers)) == expected


def test_engine_is_empty_after_all_trajectories_are_aborted(policy):
    engine = TransformersEngine(policy, seed=0)
    turns(engine, [[1]])
    assert engine.poll(0.0) == [] and engine.pause() == []
    first = turns(engine, [[2]], Sampling(max_new_tokens=CAP, seed=8))
    assert first == turns(engine, [[2]], Sampling(max_new_tokens=CAP, seed=8))


def test_next_turn_uses_the_new_weights(policy):
    changed = stopping(random_policy(seed=6))
    changed.version = 1
    engine = TransformersEngine(policy, seed=0)
    engine.submit([SamplingRequest(0, PROMPTS[0], lasts=True)], GREEDY)
    ((_, sample),) = engine.poll(1.0)
    engine.update(changed)
    ids = (*PROMPTS[0], *sample.tokens.ids, 4, 5)
    engine.submit([SamplingRequest(0, ids, lasts=True)], GREEDY)
    ((_, again),) = engine.poll(1.0)
    assert again.tokens.ids == regenerate(changed, ids) and set(again.tokens.versions) == {1}


def test_pause_returns_unfinished_keys_and_keys_are_unique(policy):
    engine = TransformersEngine(policy, seed=0)
    engine.submit([SamplingRequest(key, PROMPTS[1]) for key in (3, 4)], GREEDY)
    with pytest.raises(ValueError, match="these keys"):
        engine.submit([SamplingRequest(4, PROMPTS[0])], GREEDY)
    engine.nudge()
    assert engine.poll(9.0) == [] and [key for key, _ in engine.pause()] == [3, 4]
    assert engine.poll(0.0) == []
