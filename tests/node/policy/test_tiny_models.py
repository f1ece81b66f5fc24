import itertools
from importlib import resources
from pathlib import Path

import pytest
import torch

from experiments.recipe.corpus import training_questions
from experiments.recipe.make import CONTEXT, RECIPES, measure
from experiments.recipe.tokenizer import make_tokenizer
from node.policy.model_source import SHIPPED
from node.tasks.task import split_of
from node.tasks.task_set import Allowed, load_task_set, open_envs
from swarm.groups import Split
from tests.support import loaded

MODELS = Path(str(resources.files("node") / "models"))
SEEDS = 300
SHARES = {
    "tiny": ((0.015, 0.08), (0.08, 0.3)),
    "tiny-wide": ((0.015, 0.08), (0.08, 0.3)),
    "tiny-working": ((0.28, 0.4), (0.4, 0.7)),
    "tiny-games": ((0.18, 0.32), (0.55, 0.9)),
}
"""Bounds of right answers and of informative groups."""


@pytest.fixture(scope="module")
def sources():
    return open_envs(load_task_set("tiny"), Allowed())[0]


def built(sources, *splits):
    """The first tasks of every level."""
    levels = [(source, level) for source in sources.values() for level in range(source.levels)]
    of = itertools.product(levels, splits, range(SEEDS))
    return [source.build(level, seed, split) for (source, level), split, seed in of]


@pytest.fixture(scope="module")
def tasks(sources):
    return built(sources, *Split)


@pytest.fixture(scope="module", params=SHIPPED)
def policy(request):
    return loaded(request.param)


def test_the_shape_suits_engines_that_are_made_for_large_models(policy):
    config = policy.model.config
    assert config.head_dim >= 32 and config.head_dim % 8 == 0
    assert config.vocab_size % 8 == 0 and config.vocab_size >= len(policy.tokenizer)
    assert config.architectures[0] in {"Qwen3ForCausalLM", "LlamaForCausalLM"}


def test_a_completion_ends_with_a_token_that_is_no_padding(policy):
    assert policy.eos_id != policy.pad_id and policy.stop_ids == (policy.eos_id,)
    assert policy.tokenizer.chat_template is None
    ids = policy.encode_completion("12<eos><pad>", stopped=False)
    assert policy.eos_id not in ids and policy.decode(ids) == "12<eos><pad>", "it stays text"
    unknown = policy.encode_completion("1\u00e92", stopped=False)
    assert policy.decode(unknown) == "1\ufffd2", "a visible mark is left"


def test_two_architectures_two_widths_and_two_vocabularies_meet_in_a_swarm():
    tiny, wide = map(loaded, SHIPPED[:2])
    assert tiny.model.config.model_type != wide.model.config.model_type
    assert tiny.model.config.hidden_size != wide.model.config.hidden_size
    assert tiny.encoding != wide.encoding


def test_prompts_and_answers_come_back_from_their_tokens(policy, tasks):
    for task in tasks:
        for text in (task.prompt, str(task.entry["answer"])):
            assert policy.decode(policy.encode_completion(text, stopped=False)) == text


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "tiny-games"])
def test_prompts_and_answers_are_short_enough_for_a_quick_round(name):
    """Of those that were made for answers of one turn."""
    answering, told = loaded(name), RECIPES[name].tasks
    asked = built(told.open(), Split.TRAIN)
    assert max(len(answering.encode_prompt(task.prompt)) for task in asked) <= 32
    answers = (answering.encode_completion(str(t.entry["answer"]), stopped=True) for t in asked)
    assert max(map(len, answers)) <= told.longest


def test_a_right_answer_is_rewarded_and_no_answer_is_evaluated(sources, tasks):
    assert not any(source.questions.evaluates_text for source in sources.values())
    for task in tasks:
        assert sources[task.ref.env].score(task, str(task.entry["answer"])) == 1.0


def test_all_models_together_stay_under_three_megabytes():
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) < 3_000_000


def test_the_recipe_never_sees_a_question_that_is_held_out(tasks):
    levels = training_questions(draws=SEEDS).values()
    seen = {question.prompt for level in levels for question in level}
    held_out = {task.prompt for task in tasks if split_of(task.entry["question"]) is Split.HELDOUT}
    assert seen and held_out and seen.isdisjoint(held_out)


@pytest.mark.parametrize("split", Split)
def test_the_base_is_as_often_right_as_it_is_said_to_be(policy, split):
    torch.manual_seed(0)
    success = measure(policy.model, policy.tokenizer, split, 32, RECIPES[policy.name].tasks)
    found = success.rate, success.informative
    for value, (least, most) in zip(found, SHARES[policy.name], strict=True):
        assert least < value < most


def test_every_game_has_groups_to_learn_from_and_none_is_long():
    policy = loaded("tiny-games")
    torch.manual_seed(0)
    tasks = RECIPES["tiny-games"].tasks
    success = measure(policy.model, policy.tokenizer, Split.TRAIN, 64, tasks)
    assert {env for env, _ in success.by_level} == set(tasks.open())
    easiest = [rate for (_, level), rate in success.by_level.items() if level == 0]
    assert all(0.01 < rate < 0.7 for rate in easiest)


def test_the_recipe_makes_the_tokenizers_that_are_shipped(policy):
    made = make_tokenizer(RECIPES[policy.name].phrases, CONTEXT)
    assert made.get_vocab() == policy.tokenizer.get_vocab()
