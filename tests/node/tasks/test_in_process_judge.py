"""The judge inside the process gives the verdicts of the verifier's worker."""

from __future__ import annotations

import pytest

from node.tasks.catalogue import load_catalogue
from node.tasks.scorer import Answered, Move
from node.tasks.verifier.in_process import LocalJudge
from node.tasks.verifier.verifier import Verifier
from swarm.groups import Split, TaskRef
from swarm.verification import UNKNOWN_ENV, JudgeRefused

SPECS = load_catalogue("tiny")


def test_it_agrees_with_the_verifier_on_every_family_and_split():
    judge = LocalJudge(SPECS)
    texts = ["7", "12", "tac", " 10", "", "((("]
    with Verifier(SPECS, outside=False) as verifier:
        assert judge.start() == verifier.start()
        for spec in SPECS:
            for split in Split:
                task = TaskRef(spec.name, len(spec.levels) - 1, 99, split)
                assert judge.prompts([task]) == verifier.prompts([task])
                here = judge.judge(task, texts)
                assert here == verifier.judge(task, texts)


def test_it_never_evaluates_text_in_this_process():
    specs = [s for s in load_catalogue("reasoning-gym") if s.name == "binary_matrix"]
    with pytest.raises(JudgeRefused, match="evaluates the text of answers"):
        LocalJudge(specs).judge(TaskRef("binary_matrix", 0, 1), ["__import__('os').abort()"])


def test_what_it_does_not_know_is_refused():
    with pytest.raises(JudgeRefused, match=UNKNOWN_ENV):
        LocalJudge(SPECS).judge(TaskRef("no_such_family", 0, 1), ["1"])
    with pytest.raises(JudgeRefused, match=UNKNOWN_ENV):
        LocalJudge(SPECS).judge(TaskRef(SPECS[0].name, 99, 1), ["1"])


def test_turns_taken_in_it_are_answered_at_once_and_never_raise():
    judge = LocalJudge(load_catalogue("games"))
    tasks = [TaskRef("guess", 0, 1), TaskRef("gcd", 0, 1), TaskRef("guess", 99, 1)]
    moves = [Move(number, task, ("500",), final=False) for number, task in enumerate(tasks)]
    outcomes = judge.play_each(moves)
    assert all(outcome.done() for outcome in outcomes)
    answered, unknown, no_level = (outcome.result() for outcome in outcomes)
    assert isinstance(answered, Answered)
    assert (unknown.reason, no_level.reason) == (UNKNOWN_ENV, UNKNOWN_ENV)
    assert judge.waiting == frozenset()
