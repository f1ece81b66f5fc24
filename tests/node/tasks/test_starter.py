"""The levels of the shipped task sets, and the families of ``starter``."""

import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import TaskSetError
from node.tasks.sources.reasoning_gym import holds
from node.tasks.starter_families import FAMILIES, in_words
from node.tasks.task import TaskSource
from node.tasks.task_set import Allowed, load_task_set, open_envs
from protocol.manifest import EnvSpec
from swarm.groups import Split

SETS = ("starter", "reasoning-gym", "working")
LOGIC = "propositional_logic"  # without a known answer: its fixed ones are formulas
TASKS = 200
LIMIT = 0.1


@cache
def sources(name: str) -> dict[str, TaskSource]:
    allowed = Allowed(code_execution=["binary_matrix"])
    opened, closed = open_envs(load_task_set(name), allowed)
    assert not closed
    return opened


LEVELS = [
    (name, spec.name, level)
    for name in SETS
    for spec in load_task_set(name)
    for level in range(len(spec.levels))
    if spec.name != LOGIC
]
FIRST = [each for each in LEVELS if each[2] == 0]
LATER = [each for each in LEVELS if each[2] > 0]


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:[./:'-][^\W_]+)*", text.lower())


def best_fixed_answers(name: str, env: str, level: int) -> tuple[float, float]:
    """Return how often the best constant and the best fixed position are right."""
    source = sources(name)[env]
    tasks = [source.build(level, seed) for seed in range(TASKS)]
    answers = Counter(str(task.entry["answer"]) for task in tasks)
    positions: Counter[int] = Counter()
    for task in tasks:
        tokens, answer = words(task.entry["question"]), words(str(task.entry["answer"]))
        starts = range(len(tokens) - len(answer) + 1)
        matches = [n for n in starts if tokens[n : n + len(answer)] == answer]
        positions.update({position for n in matches for position in (n, n - len(tokens))})
    return max(answers.values()) / TASKS, max(positions.values(), default=0) / TASKS


@pytest.mark.parametrize(("name", "env", "level"), FIRST)
def test_constant_answer_is_rarely_right_at_the_first_level(name, env, level):
    assert max(best_fixed_answers(name, env, level)) <= LIMIT


@pytest.mark.parametrize(("name", "env", "level"), LATER)
def test_constant_answer_is_rarely_right_at_later_levels(name, env, level):
    assert max(best_fixed_answers(name, env, level)) <= LIMIT


def test_constant_formula_is_rarely_right():
    source = sources("reasoning-gym")[LOGIC]
    tasks = [source.build(0, seed) for seed in range(100)]
    formulas = [sign + letter for letter in "PQRSTU" for sign in ("", "¬")]
    formulas += ["P ∨ R", "P → S", "¬P → R", "¬P → ¬S", "P ↔ Q", "Q → R"]
    shares = [sum(source.score(task, each) for task in tasks) / 100 for each in formulas]
    assert 0.0 < max(shares) <= LIMIT


def test_starter_families_have_six_to_eight_levels_and_one_format():
    specs = load_task_set("starter")
    assert all(6 <= len(spec.levels) <= 8 for spec in specs) and len(specs) == 17
    for env, source in sources("starter").items():
        prompt = source.build(0, 1).prompt
        assert prompt.count("Reply with") == 1 and "your final" not in prompt, env


@pytest.mark.parametrize("env", FAMILIES)
@pytest.mark.parametrize("split", Split)
def test_starter_task_is_repeatable_and_its_answer_is_right(env, split):
    source = sources("starter")[env]
    for level in range(source.levels):
        for seed in range(5):
            task = source.build(level, seed, split)
            assert task == source.build(level, seed, split)
            assert source.score(task, f"The answer is **{task.entry['answer']}**.") == 1.0
            assert source.score(task, "I do not know") < 0.5


@pytest.mark.parametrize("env", FAMILIES)
def test_family_accepts_extreme_settings_and_rejects_others(env):
    family = FAMILIES[env]
    for end in (lambda allowed: allowed.start, lambda allowed: allowed.stop - 1):
        opened = family([{key: end(allowed) for key, allowed in family.settings.items()}])
        for number in range(20):
            sample = opened.draw(0, number)
            assert opened.score(sample, sample["answer"]) == 1.0 and opened.score(sample, "") == 0.0
    wrong = tuple(f'{{"{key}":-1}}' for key in family.settings)[:1]
    spec = EnvSpec(env, "plugin", "1", wrong, "{question}", "text")
    with pytest.raises(TaskSetError, match=env):
        open_envs([spec], Allowed())


def test_reversed_text_earns_credit_for_its_correct_part():
    family = FAMILIES["reverse_text"]([{"words": 3, "partial_credit": True}])
    sample = family.draw(0, 1)
    right = sample["answer"]
    rewards = [family.score(sample, each) for each in (right, right[:-3], right[:-6], "")]
    assert rewards == sorted(rewards, reverse=True) and rewards[0] == 1.0 > rewards[1] > 0.5
    for invalid in ("I do not know", right[::-1], "", right[::-1] * 50_000):
        assert family.score(sample, invalid) < 0.2, invalid


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "zero"),
        (14, "fourteen"),
        (20, "twenty"),
        (59, "fifty-nine"),
        (241, "two hundred and forty-one"),
        (1000, "one thousand"),
        (1007, "one thousand and seven"),
        (90_100, "ninety thousand one hundred"),
        (2_000_003_015, "two billion three thousand and fifteen"),
    ],
)
def test_in_words_spells_a_number(number, written):
    assert in_words(number) == written


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_in_words_distinguishes_all_numbers(one, other):
    assert (in_words(one) == in_words(other)) == (one == other)


@given(st.text(max_size=40), st.text(max_size=10), st.text(max_size=40))
def test_holds_finds_an_answer_in_its_question(before, answer, after):
    assert holds(f"{before} {answer} {after}", answer) == bool(words(answer))
    assert not holds("6 - 2 =", "4") and holds("6 - 3 =", "3") and not holds("16 + 1", "6")
