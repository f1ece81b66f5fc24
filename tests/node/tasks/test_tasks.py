"""Tasks: rebuilt from a seed alone, anywhere; training and evaluation never share a question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.task import ScoringError, TaskError, TaskSource, draw_number, split_of
from swarm.groups import Split

SHIPPED = ("tiny", "reasoning-gym")

REBUILD = """
import json, sys
from node.tasks.catalogue import load_catalogue, open_catalogue
from swarm.groups import Split
sources = {
    (catalogue, name): source
    for catalogue in ("tiny", "reasoning-gym")
    for name, source in open_catalogue(load_catalogue(catalogue), {}).items()
}
wanted = [
    (key, level, seed, split)
    for key, source in sources.items()
    for level in range(source.levels)
    for seed in (0, 1, 2**62 + 11, 2**63 - 1)
    for split in Split
]
if sys.argv[1] == "backwards":
    wanted.reverse()
built = {}
for key, level, seed, split in wanted:
    task = sources[key].build(level, seed, split)
    answer = str(task.entry["answer"])
    built[f"{key} {level} {seed} {split}"] = [
        task.prompt, answer, sources[key].score(task, answer)
    ]
print()
print(json.dumps(built))
"""


class Numbers:
    """Questions that are bare numbers below ``bound``."""

    levels = 1
    evaluates_text = False

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        return {"question": str(number % self._bound)}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        return float(answer)


def numbers(bound: int = 10_000) -> TaskSource:
    return TaskSource("numbers", "{question}!", "text", Numbers(bound))


@pytest.fixture(scope="module")
def shipped() -> dict[tuple[str, str], TaskSource]:
    return {
        (catalogue, name): source
        for catalogue in SHIPPED
        for name, source in open_catalogue(load_catalogue(catalogue), {}).items()
    }


def rebuilt(hash_seed: str, order: str) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", REBUILD, order],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    # One of the families prints while it builds.
    return json.loads(done.stdout.splitlines()[-1])


def test_every_shipped_task_is_the_same_in_another_process_order_and_hash_seed():
    forwards, backwards = rebuilt("1", "forwards"), rebuilt("77", "backwards")
    assert len(forwards) > 100
    assert forwards == backwards


@given(seed=st.integers(0, (1 << 63) - 1))
@settings(max_examples=25, deadline=None)
def test_shipped_tasks_fall_into_the_split_asked_for(shipped, seed):
    for source in shipped.values():
        for split in Split:
            task = source.build(0, seed, split)
            assert split_of(task.entry["question"]) is split
            assert task.entry["question"] in task.prompt


def test_a_right_answer_scores_one_and_nonsense_scores_nothing(shipped):
    for (_, name), source in shipped.items():
        for level in range(source.levels):
            task = source.build(level, 5)
            if name != "propositional_logic":  # scored by validity, no answer is stored
                assert source.score(task, str(task.entry["answer"])) == 1.0, name
            assert source.score(task, "no answer at all, @") == 0.0, name


def test_one_question_in_eight_is_held_out():
    held_out = sum(split_of(str(n)) is Split.HELDOUT for n in range(8000))
    assert 900 < held_out < 1100


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 255))
def test_draws_are_63_bit_numbers(seed, attempt):
    assert 0 <= draw_number(seed, attempt) < 1 << 63


def test_different_seeds_give_different_questions():
    questions = {numbers(1 << 60).build(0, seed).prompt for seed in range(500)}
    assert len(questions) == 500


def test_an_env_without_enough_questions_is_named():
    here = split_of("0")
    elsewhere = next(split for split in Split if split is not here)
    assert numbers(bound=1).build(0, 1, here).prompt == "0!"
    with pytest.raises(TaskError, match=rf"'numbers' level 0: no {elsewhere.value} question"):
        numbers(bound=1).build(0, 1, elsewhere)


@pytest.mark.parametrize("entry", [{}, {"question": 3}, {"question": "cut \ud83d"}])
def test_a_question_that_is_no_text_is_the_envs_fault_and_named(entry):
    class Forgetful(Numbers):
        def draw(self, level: int, number: int) -> Mapping[str, Any]:
            return entry

    source = TaskSource("numbers", "{question}!", "text", Forgetful(1))
    with pytest.raises(TaskError, match="'numbers' level 0 cannot draw"):
        source.build(0, 1)


@pytest.mark.parametrize(("level", "seed"), [(1, 0), (-1, 0), (0, -1), (0, 1 << 63)])
def test_coordinates_out_of_range_are_refused(level, seed):
    with pytest.raises(TaskError, match="numbers"):
        numbers().build(level, seed)


@pytest.mark.parametrize("reward", ["1.5", "-0.1", "nan", "inf"])
def test_a_reward_outside_zero_to_one_is_the_envs_fault(reward):
    source = numbers()
    with pytest.raises(ScoringError, match="numbers"):
        source.score(source.build(0, 0), reward)
