from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.errors import NodeError
from node.evaluation.evaluator import Evaluator
from node.learner.update_stats import UpdateStats
from node.monitor.jsonl import JsonLinesFile
from node.monitor.stopwatch import Stopwatch
from node.rollout.generator import Generator
from node.rollout.task_indexes import TaskIndexes
from node.run.outcome import Outcome
from node.run.recorder import record_of
from node.tasks.sampler import TaskSampler
from node.tasks.scorer import Scorer
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.journal import MEMORY, Journal
from swarm.judge import CRASHED, JudgeRefused, Verdict
from swarm.member import MemberStatus
from swarm.pool import Pool
from swarm.task_ref import Split, TaskRef
from tests.support import random_policy

LONG = 600


class Teacher(Scorer):
    """Asks one short question and then one that is too long, in turn; likes every answer."""

    def __init__(self, lengths: Sequence[int] = (5, LONG)) -> None:
        self._lengths = lengths

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        return ["?" * self._lengths[n % len(self._lengths)] for n in range(len(tasks))]

    def judge(self, task: TaskRef, texts: Sequence[str]):
        return Verdict("?", (1.0,) * len(texts))


def generator(teacher: Teacher, counters: Counters) -> Generator:
    policy = random_policy()
    clock = SystemClock()
    return Generator(
        author=bytes(32),
        policy=policy,
        engine=TransformersEngine(policy, seed=0),
        verifier=teacher,
        sampler=TaskSampler([("sums", 0)], {}, random.Random(0)),
        indexes=TaskIndexes(Journal(MEMORY, clock), clock, 60.0, 100, random.Random(0)),
        sampling=Sampling(max_new_tokens=2),
        group_size=2,
        counters=counters,
    )


def test_a_task_whose_prompt_does_not_fit_the_context_is_left_out_and_counted() -> None:
    counters = Counters()
    groups = generator(Teacher(), counters).generate(4, Stopwatch())
    assert [g.group.index for g in groups] == [0, 2]
    assert counters.snapshot() == {"own_prompts_too_long": 2}


def test_a_policy_that_no_prompt_fits_is_refused_with_both_lengths() -> None:
    with pytest.raises(NodeError, match=r"600 tokens or more, context 512\. Choose a model"):
        generator(Teacher((LONG,)), Counters()).generate(3, Stopwatch())


def test_a_held_out_task_that_does_not_fit_is_unsolved() -> None:
    policy = random_policy()
    tasks = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(4)]
    engine = TransformersEngine(policy, seed=0)
    sampling = Sampling(max_new_tokens=2)
    evaluator = Evaluator(policy, engine, Teacher(), tasks, sampling, Counters())
    assert evaluator.evaluate().rewards == ((1.0,), (0.0,), (1.0,), (0.0,))


class Strict(Teacher):
    """Can build some of its tasks only."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__((5,))
        self._seeds = seeds

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        if not {task.seed for task in tasks} <= {*self._seeds}:
            raise JudgeRefused(CRASHED, "this one cannot be built")
        return super().prompts(tasks)


def evaluator(teacher: Teacher, counters: Counters) -> Evaluator:
    policy = random_policy()
    engine = TransformersEngine(policy, seed=0)
    tasks = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(4)]
    return Evaluator(policy, engine, teacher, tasks, Sampling(max_new_tokens=2), counters)


def test_a_held_out_task_that_cannot_be_built_is_unsolved_counted_and_told() -> None:
    counters = Counters()
    evaluation = evaluator(Strict((0, 2, 3)), counters).evaluate(2)
    assert evaluation.rewards == ((1.0, 1.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0))
    assert evaluation.unbuilt == 1
    assert counters.snapshot() == {"heldout_unbuilt{reason=crashed}": 1}


def test_where_no_task_can_be_built_neither_evaluation_nor_generation_goes_on() -> None:
    with pytest.raises(JudgeRefused, match="none of 4 tasks"):
        evaluator(Strict(()), Counters()).evaluate()
    with pytest.raises(JudgeRefused, match="none of 3 tasks"):
        generator(Strict(()), Counters()).generate(3, Stopwatch())


def test_a_figure_that_is_no_number_is_left_out_of_the_record(tmp_path: Path) -> None:
    clock, counters = SystemClock(), Counters()
    update = UpdateStats(loss=0.5, ratio_max=float("inf"), engine_gap=float("nan"), skipped=False)
    outcome = Outcome(1, 1, (), (), update, None, {"total": 1.0}, 4)
    status = MemberStatus("12D3", (), 0, (), 0, 0)
    record = record_of(
        outcome, status, Pool(Journal(MEMORY, clock), 8, 60.0, clock, counters), counters, 0.0
    )
    path = tmp_path / "metrics.jsonl"
    with closing(JsonLinesFile(path)) as file:
        file.write(record)
    written = json.loads(path.read_text())
    assert written["loss"] == 0.5
    assert written["ratio_max"] is None and written["engine_gap"] is None
