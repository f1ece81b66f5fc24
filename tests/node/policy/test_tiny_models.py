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
"""Bounds of the shares of right answers and of informative groups."""


@pytest.fixture(scope="module")
def sources():
    return open_envs(load_task_set("tiny"), Allowed())[0]


def built(sources, *splits):
    """Return the first tasks of every level."""
    levels = [(source, level) for source in sources.values() for level in range(source.levels)]
    cases = itertools.product(levels, splits, range(SEEDS))
    return [source.build(level, seed, split) for (source, level), split, seed in cases]


@pytest.fixture(scope="module")
def tasks(sources):
    return built(sources, *Split)


@pytest.fixture(scope="module", params=SHIPPED)
def policy(request):
    return loaded(request.param)


def test_shipped_model_shapes_suit_large_model_engines(policy):
    config = policy.model.config
    assert config.head_dim >= 32 and config.head_dim % 8 == 0
    assert config.vocab_size % 8 == 0 and config.vocab_size >= len(policy.tokenizer)
    assert config.architectures[0] in {"Qwen3ForCausalLM", "LlamaForCausalLM"}


def test_eos_token_differs_from_the_padding_token(policy):
    assert policy.eos_id != policy.pad_id and policy.stop_ids == (policy.eos_id,)
    assert policy.tokenizer.chat_template is None
    ids = policy.encode_completion("12<eos><pad>", stopped=False)
    assert policy.eos_id not in ids and policy.decode(ids) == "12<eos><pad>", "it stays text"
    unknown = policy.encode_completion("1\u00e92", stopped=False)
    assert policy.decode(unknown) == "1\ufffd2", "a visible replacement remains"


def test_prompts_and_answers_round_trip_through_tokens(policy, tasks):
    for task in tasks:
        for text in (task.prompt, str(task.entry["answer"])):
            assert policy.decode(policy.encode_completion(text, stopped=False)) == text


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "tiny-games"])
def test_prompts_and_answers_stay_within_token_limits(name):
    """Test the models that were trained for single-turn answers."""
    answering, spec = loaded(name), RECIPES[name].tasks
    examples = built(spec.open(), Split.TRAIN)
    assert max(len(answering.encode_prompt(task.prompt)) for task in examples) <= 32
    answers = (answering.encode_completion(str(t.entry["answer"]), stopped=True) for t in examples)
    assert max(map(len, answers)) <= spec.longest


def test_right_answers_get_reward_without_text_evaluation(sources, tasks):
    assert not any(source.questions.evaluates_text for source in sources.values())
    for task in tasks:
        assert sources[task.ref.env].score(task, str(task.entry["answer"])) == 1.0


def test_all_models_together_stay_under_three_megabytes():
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) < 3_000_000


def test_recipe_excludes_held_out_questions(tasks):
    levels = training_questions(draws=SEEDS).values()
    seen = {question.prompt for level in levels for question in level}
    held_out = {task.prompt for task in tasks if split_of(task.entry["question"]) is Split.HELDOUT}
    assert seen and held_out and seen.isdisjoint(held_out)


@pytest.mark.parametrize("split", Split)
def test_base_success_rates_are_within_bounds(policy, split):
    torch.manual_seed(0)
    success = measure(policy.model, policy.tokenizer, split, 32, RECIPES[policy.name].tasks)
    rates = success.rate, success.informative
    for value, (least, most) in zip(rates, SHARES[policy.name], strict=True):
        assert least < value < most


def test_easiest_game_levels_have_medium_success_rates():
    policy = loaded("tiny-games")
    torch.manual_seed(0)
    tasks = RECIPES["tiny-games"].tasks
    success = measure(policy.model, policy.tokenizer, Split.TRAIN, 64, tasks)
    assert {env for env, _ in success.by_level} == set(tasks.open())
    easiest = [rate for (_, level), rate in success.by_level.items() if level == 0]
    assert all(0.01 < rate < 0.7 for rate in easiest)


def test_recipe_reproduces_the_shipped_tokenizers(policy):
    rebuilt = make_tokenizer(RECIPES[policy.name].phrases, CONTEXT)
    assert rebuilt.get_vocab() == policy.tokenizer.get_vocab()
