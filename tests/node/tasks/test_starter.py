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
MOST = 0.1


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
    """Return how often the best constant is right, and the words at the best fixed place."""
    source = sources(name)[env]
    tasks = [source.build(level, seed) for seed in range(TASKS)]
    answers = Counter(str(task.entry["answer"]) for task in tasks)
    places: Counter[int] = Counter()
    for task in tasks:
        asked, answer = words(task.entry["question"]), words(str(task.entry["answer"]))
        starts = range(len(asked) - len(answer) + 1)
        there = [n for n in starts if asked[n : n + len(answer)] == answer]
        places.update({place for n in there for place in (n, n - len(asked))})
    return max(answers.values()) / TASKS, max(places.values(), default=0) / TASKS


@pytest.mark.parametrize(("name", "env", "level"), FIRST)
def test_no_fixed_answer_is_right_often_at_an_easiest_level(name, env, level):
    assert max(best_fixed_answers(name, env, level)) <= MOST


@pytest.mark.parametrize(("name", "env", "level"), LATER)
def test_no_fixed_answer_is_right_often_at_a_later_level(name, env, level):
    assert max(best_fixed_answers(name, env, level)) <= MOST


def test_no_formula_follows_from_many_premises():
    source = sources("reasoning-gym")[LOGIC]
    tasks = [source.build(0, seed) for seed in range(100)]
    formulas = [sign + letter for letter in "PQRSTU" for sign in ("", "¬")]
    formulas += ["P ∨ R", "P → S", "¬P → R", "¬P → ¬S", "P ↔ Q", "Q → R"]
    shares = [sum(source.score(task, each) for task in tasks) / 100 for each in formulas]
    assert 0.0 < max(shares) <= MOST


def test_starter_has_six_to_eight_levels_of_each_family_and_states_one_format():
    specs = load_task_set("starter")
    assert all(6 <= len(spec.levels) <= 8 for spec in specs) and len(specs) == 17
    for env, source in sources("starter").items():
        prompt = source.build(0, 1).prompt
        assert prompt.count("Reply with") == 1 and "your final" not in prompt, env


@pytest.mark.parametrize("env", FAMILIES)
@pytest.mark.parametrize("split", Split)
def test_a_family_of_starter_is_drawn_alike_and_its_answer_is_right(env, split):
    source = sources("starter")[env]
    for level in range(source.levels):
        for seed in range(5):
            task = source.build(level, seed, split)
            assert task == source.build(level, seed, split)
            assert source.score(task, f"The answer is **{task.entry['answer']}**.") == 1.0
            assert source.score(task, "I do not know") < 0.5


@pytest.mark.parametrize("env", FAMILIES)
def test_the_widest_settings_of_a_family_can_be_drawn_and_others_are_refused(env):
    family = FAMILIES[env]
    for end in (lambda allowed: allowed.start, lambda allowed: allowed.stop - 1):
        opened = family([{key: end(allowed) for key, allowed in family.settings.items()}])
        for number in range(20):
            drawn = opened.draw(0, number)
            assert opened.score(drawn, drawn["answer"]) == 1.0 and opened.score(drawn, "") == 0.0
    wrong = tuple(f'{{"{key}":-1}}' for key in family.settings)[:1]
    spec = EnvSpec(env, "plugin", "1", wrong, "{question}", "text")
    with pytest.raises(TaskSetError, match=env):
        open_envs([spec], Allowed())


def test_a_text_backward_earns_the_more_the_more_of_it_is_right():
    family = FAMILIES["reverse_text"]([{"words": 3, "partial_credit": True}])
    drawn = family.draw(0, 1)
    right = drawn["answer"]
    rewards = [family.score(drawn, each) for each in (right, right[:-3], right[:-6], "")]
    assert rewards == sorted(rewards, reverse=True) and rewards[0] == 1.0 > rewards[1] > 0.5
    for nothing in ("I do not know", right[::-1], "", right[::-1] * 50_000):
        assert family.score(drawn, nothing) < 0.2, nothing


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
def test_a_number_is_written_in_words(number, written):
    assert in_words(number) == written


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_two_numbers_are_never_written_alike(one, other):
    assert (in_words(one) == in_words(other)) == (one == other)


@given(st.text(max_size=40), st.text(max_size=10), st.text(max_size=40))
def test_an_answer_that_stands_in_its_question_is_found(before, answer, after):
    assert holds(f"{before} {answer} {after}", answer) == bool(words(answer))
    assert not holds("6 - 2 =", "4") and holds("6 - 3 =", "3") and not holds("16 + 1", "6")
