"""Trajectories are written and answered while the policy learns, and survive a stop."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from node.engines.engine import Sampling, SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.learner.batches import TrainingCompletion
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.group_writer import UnfinishedGroups
from node.rollout.groups import OwnGroup
from node.tasks.scorer import Move, Moved, settled
from node.tasks.verifier.in_process import LocalJudge
from protocol.rollout import Completion, Writer
from swarm.common.clock import VirtualClock
from swarm.journal import MEMORY, Journal
from swarm.verification import CRASHED, JudgeRefused
from tests.node.environments.parts import FOR_TESTS, spec
from tests.node.rollout.overlap_parts import LIMITS, Parts, parts

LEVELS = (("echo", 0), ("drawing", 0), ("sums", 0))


@pytest.fixture
def journal() -> Journal:
    return Journal(MEMORY, VirtualClock(0.0))


class Judge(LocalJudge):
    """Plays environments, and notes every turn.

    Attributes:
        hold: names of environments that do not answer yet.
    """

    def __init__(self) -> None:
        super().__init__([spec("echo"), spec("drawing"), spec("passing"), spec("tripping")])
        self.moves: list[Move] = []
        self.hold: frozenset[str] = frozenset()
        self.held: list[tuple[Move, Future[Moved]]] = []

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        self.moves += moves
        return [self.one(move) for move in moves]

    def one(self, move: Move) -> Future[Moved]:
        if move.task.env not in self.hold:
            return super().play_each([move])[0]
        later: Future[Moved] = Future()
        self.held.append((move, later))
        return later

    def let_go(self) -> None:
        self.hold = frozenset()
        for move, later in self.held:
            later.set_result(super().play_each([move])[0].result())


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return Judge()


def engine(policy: Policy) -> TransformersEngine:
    """Writes what is polled for; every third token ends a turn."""
    policy.stop_ids = tuple(range(0, policy.vocabulary, 3))
    return TransformersEngine(policy, seed=0)


def playing(journal: Journal, judge: Judge, *names: str) -> Parts:
    return parts(journal, engine, judge, levels=[(name, 0) for name in names])


def check(made: Parts, judge: Judge, group: OwnGroup) -> None:
    """That a group is what its environment makes of its turns, and what the policy read."""
    for done, training in zip(group.group.completions, group.training.completions, strict=True):
        assert done.alternates and len(done.segments) <= 2 * LIMITS.turns
        read: list[int] = []
        for segment in done.segments:
            if segment.writer is Writer.ENVIRONMENT:
                read += made.policy.encode_observation(segment.text)
            elif segment.tokens is not None:
                read += segment.tokens.ids
        assert tuple(read) == training.ids
    assert group.training.rewards == tuple(done.reward for done in group.group.completions)


def turns(done: Completion) -> int:
    return sum(segment.writer is Writer.POLICY for segment in done.segments)


def test_groups_of_environments_fill_updates_and_each_is_replayed(
    journal: Journal, judge: Judge
) -> None:
    made = playing(journal, judge, "echo", "drawing")
    source = made.overlapping(1)
    groups = [group for _ in range(4) for group in source.generate(3, Stopwatch())]
    assert len(groups) == 12 and not made.counters.snapshot()
    for group in groups:
        check(made, judge, group)
    assert {turns(done) for group in groups for done in group.group.completions} >= {1, 2, 3}


def test_what_a_play_that_failed_has_left_in_the_engine_is_halted_with_the_rest(
    journal: Journal, judge: Judge
) -> None:
    made = playing(journal, judge, "echo")
    source = made.overlapping(1)
    source.generate(1, Stopwatch())
    stray = SamplingRequest(1_000_000, (1, 2, 3), stream=1, lasts=True)
    made.engine.submit([stray], Sampling(max_new_tokens=400))
    source.close()
    assert made.engine.halt() == []


def test_a_trajectory_that_waits_for_its_environment_holds_up_no_other(
    journal: Journal, judge: Judge
) -> None:
    judge.hold = frozenset({"drawing"})
    made = playing(journal, judge, "echo", "drawing")
    source = made.overlapping(4)
    groups = source.generate(3, Stopwatch())
    assert {group.group.env for group in groups} == {"echo"} and judge.held
    judge.let_go()
    later = [group for _ in range(3) for group in source.generate(3, Stopwatch())]
    assert "drawing" in {group.group.env for group in later}
    for group in later:
        check(made, judge, group)


def test_a_stop_between_two_turns_goes_on_with_the_next_and_spells_nothing_again(
    journal: Journal, judge: Judge
) -> None:
    made = playing(journal, judge, "echo", "drawing")
    source = made.overlapping(2)
    source.generate(3, Stopwatch())
    judge.hold = frozenset({"echo"})
    source.beside(lambda: None)
    source.close()
    left = {
        (group.task.index, number): kept
        for group in made.unfinished.groups()
        for number, kept in group.completions.items()
    }
    assert any(turn.observation is not None for kept in left.values() for turn in kept)
    judge.hold = frozenset()
    again = playing(journal, judge, "echo", "drawing")
    source = again.overlapping(2, version=1)
    groups = [group for _ in range(3) for group in source.generate(3, Stopwatch())]
    resumed = 0
    for group in groups:
        check(again, judge, group)
        for number, done in enumerate(group.group.completions):
            segments = [s for s in done.segments if s.writer is Writer.POLICY]
            for turn, segment in zip(
                left.get((group.group.index, number), ()), segments, strict=False
            ):
                assert segment.tokens is not None
                assert segment.tokens.ids[: len(turn.tokens.ids)] == turn.tokens.ids
                resumed += 1
    assert resumed


def test_a_trajectory_that_a_stop_has_taken_its_environment_gives_up_its_group(
    journal: Journal, judge: Judge
) -> None:
    made = playing(journal, judge, "passing")
    source = made.overlapping(2)
    source.generate(3, Stopwatch())
    source.close()
    begun = [kept for group in made.unfinished.groups() for kept in group.completions.values()]
    assert any(len(kept) > 1 for kept in begun)
    again = playing(journal, Judge(), "passing")
    source = again.overlapping(2, version=1)
    for _ in range(3):
        source.generate(3, Stopwatch())
    assert again.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def test_a_lost_environment_gives_up_its_group_alone(journal: Journal, judge: Judge) -> None:
    class Lossy(Judge):
        def one(self, move: Move) -> Future[Moved]:
            if move.task.env == "drawing":
                return settled(JudgeRefused(CRASHED, "gone"))
            return super().one(move)

    lossy = Lossy()
    made = playing(journal, lossy, "echo", "drawing")
    source = made.overlapping(1)
    groups = [group for _ in range(3) for group in source.generate(3, Stopwatch())]
    assert {group.group.env for group in groups} == {"echo"}
    assert made.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def test_own_turns_that_came_in_last_are_told_with_all_that_was_read_before_them(
    journal: Journal, judge: Judge
) -> None:
    made = playing(journal, judge, "echo")
    source = made.overlapping(1)
    source.generate(3, Stopwatch())
    for group in source.newest():
        (done,) = group.completions
        assert isinstance(done, TrainingCompletion) and all(done.trained)
        assert made.policy.decode(group.prompt_ids).startswith("Say ")


def test_a_journal_from_before_a_checkpoint_is_cut_at_a_turn(
    journal: Journal, judge: Judge
) -> None:
    made = playing(journal, judge, "echo", "drawing")
    source = made.overlapping(3)
    for step in range(3):
        made.policy.version = step
        source.generate(3, Stopwatch())
    source.close()
    unfinished = UnfinishedGroups(journal)
    assert unfinished.rewind(1, 0) > 0
    for group in unfinished.groups():
        for kept in group.completions.values():
            assert all(version == 0 for turn in kept for version in turn.tokens.versions)
            assert all(turn.observation is not None for turn in kept[:-1])
    again = playing(journal, judge, "echo", "drawing")
    source = again.overlapping(3, version=1)
    for group in source.generate(3, Stopwatch()):
        check(again, judge, group)
