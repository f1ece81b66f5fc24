"""What becomes of groups that are too old, lost or scored late, and who is woken by what."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from node.errors import NodeError
from node.monitor.record import Stopwatch
from swarm.common.clock import VirtualClock
from swarm.journal import MEMORY, Journal
from swarm.verification import CRASHED, JudgeRefused, Verdict
from tests.node.rollout.overlap_parts import AtOnce, Teacher, parts


@pytest.fixture
def journal() -> Journal:
    return Journal(MEMORY, VirtualClock(0.0))


def test_groups_that_are_too_old_after_a_restart_are_dropped_counted_and_not_written(
    journal,
) -> None:
    made = parts(journal)
    source = made.overlapping(2)
    source.generate(3, Stopwatch())
    source.close()
    left = made.unfinished.groups()
    old = {group.ticket for group in left}
    asked = made.teacher.prompts([group.task.ref for group in left])
    questions = {tuple(made.policy.encode_prompt(prompt)) for prompt in asked}
    again = parts(journal, version=5)
    source = again.overlapping(1, version=5)
    assert len(source.generate(3, Stopwatch())) == 3
    assert again.counters.snapshot() == {"own_groups_filtered{reason=stale}": len(old)}
    assert len(old) > 1
    assert not old & {group.ticket for group in again.unfinished.groups()}
    assert not questions & {trajectory.prompt for trajectory in again.engine.submitted}


class Moody(Teacher):
    """Cannot score what it is asked, every other time."""

    calls = 0

    def judge(self, *arguments, **options) -> Verdict:
        self.calls += 1
        if self.calls % 2:
            raise JudgeRefused(CRASHED, "in a bad mood")
        return super().judge(*arguments, **options)


def test_what_was_taken_is_used_by_the_policy_that_asked_and_what_was_lost_by_none(journal) -> None:
    made = parts(journal, teacher=Moody(), version=7)
    seen: list[Sequence[float]] = []
    made.tasks.sampler.observe = lambda pair, rewards: seen.append(rewards)
    groups = made.overlapping(0, version=7).generate(4, Stopwatch())
    used = journal.read("SELECT epoch, number, step FROM used ORDER BY number")
    assert used == [(*group.key, 7) for group in sorted(groups, key=lambda g: g.key)]
    assert len(groups) == len(seen) == 2
    assert not made.unfinished.groups()


def test_an_engine_that_is_gone_ends_the_run_though_the_update_went_well(journal) -> None:
    made = parts(journal)
    source = made.overlapping(1)
    source.generate(3, Stopwatch())

    looked = threading.Event()

    def gone(seconds: float) -> None:
        looked.set()
        raise NodeError("the engine's process ended", None, "See node.log.")

    made.engine.poll = gone
    with pytest.raises(NodeError, match="process ended"):
        source.beside(lambda: looked.wait(20))
    assert made.counters.snapshot() == {}


def test_a_group_whose_scoring_failed_is_scored_again(journal) -> None:
    made = parts(journal)
    score, failures = made.tasks.score, [OSError("no more processes")]

    def failing(*arguments):
        if failures:
            raise failures.pop()
        return score(*arguments)

    made.tasks.score = failing
    source = made.overlapping(0)
    with pytest.raises(OSError, match="no more processes"):
        source.generate(3, Stopwatch())
    assert len(source.generate(3, Stopwatch())) == 3


def test_whatever_is_waited_for_wakes_whoever_waits_for_the_engine(journal) -> None:
    made = parts(journal)
    waited: list[str] = []
    woken: list[None] = []
    made.engine.nudge = lambda: woken.append(None)
    score, prompts = made.tasks.score, made.tasks.prompts
    made.tasks.score = lambda *each: waited.append("verdict") or score(*each)
    made.tasks.prompts = lambda tasks: waited.append("prompts") or prompts(tasks)
    source = made.overlapping(0)
    source.generate(3, Stopwatch())
    assert waited.count("verdict") == 3 and "prompts" in waited
    assert len(woken) == len(waited)
    source.beside(lambda: None)
    assert len(woken) == len(waited) + 1


def test_closing_lets_go_of_the_threads_that_wait_for_the_verifier(journal) -> None:
    told: list[dict[str, bool]] = []

    class Threads(AtOnce):
        def shutdown(self, **how: bool) -> None:
            told.append(how)

    parts(journal).overlapping(1, threads=Threads()).close()
    assert told == [{"wait": False, "cancel_futures": True}]
