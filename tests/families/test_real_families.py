"""Common families, from the model folder through training to the exported model."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from node.config.learning import LearnerSection, PolicySection
from node.engines.engine import Sample, Sampling
from node.engines.transformers.agreement import check_agreement
from node.engines.transformers.engine import TransformersEngine
from node.errors import ConfigError
from node.learner.batches import TrainingGroup
from node.learner.learner import Learner
from node.policy.policy import Policy
from node.rollout.groups import LocalTask, external_group, local_group
from node.trajectories.trajectory import Trajectory
from protocol.rollout import encode_group
from swarm.groups import PooledGroup, TaskRef
from swarm.verification import Scores
from tests.families.real import REAL, SWITCH, write_family
from tests.families.table import learned
from tests.support import generated, loaded

QUESTIONS = ["What is 6 * 7?", "Reverse the word “naïve”, then say it."]
NEW = 12
CONFIG = LearnerSection(lr=1e-3)
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
CLOSE = {"atol": 1e-3, "rtol": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("families")
    return {name: write_family(name, place / name) for name in REAL}


def rollouts(policy: Policy, question: str, seed: int = 0) -> tuple[tuple[int, ...], list[Sample]]:
    prompt = tuple(policy.encode_prompt(question))
    engine = TransformersEngine(policy, seed=seed)
    return prompt, engine.generate([prompt], 4, Sampling(max_new_tokens=NEW))[0]


def groups_of(policy: Policy, seed: int) -> tuple[TrainingGroup, PooledGroup]:
    """Return a group as its author trains on it, and as peers receive it."""
    question = QUESTIONS[seed % 2]
    prompt, samples = rollouts(policy, question, seed)
    task = LocalTask(TaskRef("sums", 0, seed, split="train"), 7, seed)
    verdict = Scores(question, (1.0, 0.0, 1.0, 0.0))
    own = local_group(task, prompt, list(map(Trajectory.once, samples)), verdict)
    shared = PooledGroup(
        b"m" * 32, encode_group(own.group), own.group, question, policy.encoding, 0, received=0.0
    )
    return own.training, shared


def assert_engine_is_the_learner(policy: Policy, seed: int) -> None:
    for question in QUESTIONS:
        prompt, samples = rollouts(policy, question, seed)
        for sample in samples:
            told = torch.tensor(sample.tokens.logprobs)
            torch.testing.assert_close(told, learned(policy, prompt, sample.tokens.ids), **CLOSE)


def greedy(policy: Policy, prompt: tuple[int, ...]) -> tuple[int, ...]:
    sampling = Sampling(max_new_tokens=NEW, greedy=True)
    ((sample,),) = TransformersEngine(policy, seed=0).generate([prompt], 1, sampling)
    return sample.tokens.ids


def rendered(policy: Policy, turns: list[dict[str, str]]) -> str:
    template = policy.tokenizer.apply_chat_template
    return template(turns, tokenize=False, add_generation_prompt=True)


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in policy.merged().model.parameters()])


@pytest.mark.parametrize("name", REAL)
def test_prompt_is_one_template_turn_and_cannot_forge_its_tokens(name, folders):
    policy, family = loaded(folders[name]), REAL[name]
    turn = [{"role": "user", "content": QUESTIONS[1]}]
    ids = policy.encode_prompt(QUESTIONS[1])
    assert policy.tokenizer.decode(ids) == rendered(policy, turn)
    marks = {policy.eos_id, *policy.tokenizer.convert_tokens_to_ids(list(family.marks))}
    attack = f"{QUESTIONS[1]}\n{family.ends}\n {family.marks[0]}"
    forged = policy.encode_prompt(attack)
    wrapped = rendered(policy, [{"role": "user", "content": attack}])
    assert policy.tokenizer.decode(forged) == wrapped
    assert [i for i in forged if i in marks] == [i for i in ids if i in marks] != []
    token = policy.tokenizer.convert_tokens_to_ids
    assert policy.eos_id == token(family.ends), "the turn's end, even if eos_token differs"
    ends = {family.ends, *family.declared, family.eos or family.ends}
    assert set(policy.stop_ids) == set(token(list(ends)))


@pytest.mark.parametrize("name", REAL)
def test_thinking_is_disabled_if_the_template_supports_it(name, folders):
    off = {"enable_thinking": False}
    plain = loaded(folders[name])
    if SWITCH not in REAL[name].template:
        refusal = r"policy\.chat_template_kwargs\.enable_thinking: false.*does not have"
        with pytest.raises(ConfigError, match=refusal):
            loaded(folders[name], chat_template_kwargs=off)
        return
    switched = loaded(folders[name], chat_template_kwargs=off)
    told = plain.tokenizer.decode(switched.encode_prompt(QUESTIONS[0]))
    begin = plain.tokenizer.decode(plain.encode_prompt(QUESTIONS[0]))
    assert told == f"{begin}<think>\n\n</think>\n\n"
    assert switched.encoding != plain.encoding
    on = loaded(folders[name], chat_template_kwargs={"enable_thinking": True})
    assert on.encode_prompt(QUESTIONS[0]) == plain.encode_prompt(QUESTIONS[0])


@pytest.mark.parametrize("name", REAL)
def test_greedy_completions_equal_generate(name, folders):
    policy = loaded(folders[name])
    check_agreement(policy)
    for question in QUESTIONS:
        prompt = tuple(policy.encode_prompt(question))
        assert greedy(policy, prompt) == generated(policy, prompt, NEW)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("name", REAL)
def test_family_trains_resumes_and_exports(name, rank, folders, tmp_path):
    # Experts are not separate linear layers.
    targets = ATTENTION if name == "Qwen3-MoE" else ()
    adapted = {"lora_rank": rank, "lora_targets": targets}
    policy = loaded(folders[name], **adapted)
    learner, before = Learner(policy, CONFIG), weights(policy)
    for step in range(2):
        assert not learner.update([groups_of(policy, step)[0]]).skipped
        assert_engine_is_the_learner(policy, step)
    group, state = groups_of(policy, 2)[0], deepcopy(learner.state_dict())
    (policy.save_adapter if rank else policy.save)(tmp_path / "saved")
    assert not learner.update([group]).skipped
    assert_engine_is_the_learner(policy, 2)
    assert policy.version == 3 and not torch.equal(weights(policy), before)

    keys = PolicySection(model=str(folders[name]), device="cpu", **adapted)
    again = Policy.load(keys, tmp_path / "saved") if rank else loaded(tmp_path / "saved")
    resumed = Learner(again, CONFIG)
    resumed.load_state_dict(state)
    resumed.update([group])
    assert torch.equal(weights(again), weights(policy)) and again.version == 3

    policy.save(tmp_path / "exported")
    exported = loaded(tmp_path / "exported")
    assert torch.equal(weights(exported), weights(policy))
    assert exported.encoding == policy.encoding
    prompt = tuple(policy.encode_prompt(QUESTIONS[0]))
    assert greedy(exported, prompt) == greedy(policy, prompt)
    AutoModelForCausalLM.from_pretrained(tmp_path / "exported")


@pytest.mark.parametrize(("one", "other"), [("Qwen3", "Gemma 3"), ("Llama 3", "Qwen3-MoE")])
def test_two_families_learn_from_each_others_groups(one, other, folders):
    policies = [loaded(folders[one]), loaded(folders[other])]
    learners = [Learner(policy, CONFIG) for policy in policies]
    for seed in range(3):
        told = [groups_of(policy, seed) for policy in policies]
        for number, (policy, learner) in enumerate(zip(policies, learners, strict=True)):
            theirs = told[1 - number][1]
            foreign = external_group(policy, theirs, range(4))
            assert policy.encoding != theirs.encoding
            texts = [each.segments[0].text for each in theirs.group.completions]
            assert [policy.decode(each.ids) for each in foreign.completions] == texts
            assert all(each.behaviour is None for each in foreign.completions)
            before = weights(policy)
            assert not learner.update([foreign]).skipped
            assert not torch.equal(weights(policy), before)
            learner.update([groups_of(policy, seed)[0]])
            assert_engine_is_the_learner(policy, seed)


@pytest.mark.parametrize("name", REAL)
def test_second_turn_matches_the_chat_template(folders, name: str) -> None:
    policy = loaded(folders[name])
    answer, feedback = "Two.", "Too low. Again?"
    ids = policy.encode_prompt(QUESTIONS[0])
    ids += policy.encode_completion(answer, stopped=True)
    ids += policy.encode_observation(feedback)
    turns = [
        {"role": role, "content": text}
        for role, text in (("user", QUESTIONS[0]), ("assistant", answer), ("user", feedback))
    ]
    assert policy.tokenizer.decode(ids) == rendered(policy, turns)
