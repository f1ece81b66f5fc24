"""Trajectories are written and answered while the policy learns, and survive a stop."""

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.recipe.local_judge import LocalJudge
from experiments.virtual_clock import VirtualClock
from node.engines.engine import Sampling, SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.learner.batches import TrainingCompletion
from node.monitor.record import Stopwatch
from node.rollout.group_writer import TurnPlace, UnfinishedGroups, UnfinishedTurn
from node.rollout.groups import OwnTask
from node.tasks.scorer import Move, Moved, settled
from protocol.rollout import Finish, Tokens, Writer
from swarm.groups import TaskRef
from swarm.journal import MEMORY, Journal
from swarm.verification import CRASHED, JudgeRefused
from tests.node.environments.parts import FOR_TESTS, spec
from tests.node.rollout.overlap_parts import LIMITS, parts

TASKS = [OwnTask(TaskRef("sums", n, (1 << 63) - 1 - n), epoch=7, index=n) for n in range(3)]

TOKEN = st.tuples(st.integers(0, 2**32 - 1), st.floats(-1e4, 0, width=32), st.integers(0, 2**31))
begun_texts = st.lists(TOKEN, max_size=20).map(
    lambda tokens: Tokens(*(tuple(column) for column in zip(*tokens, strict=True)))
)


@pytest.fixture
def journal():
    return Journal(MEMORY, VirtualClock(0.0))


@pytest.fixture
def unfinished(journal):
    unfinished = UnfinishedGroups(journal)
    unfinished.begin(enumerate(TASKS), 5)
    return unfinished


@given(begun_texts, st.sampled_from([None, *Finish]))
def test_what_is_written_comes_back_to_the_last_bit(begun, finish):
    unfinished = UnfinishedGroups(Journal(MEMORY, VirtualClock(0.0)))
    unfinished.begin(enumerate(TASKS), 5)
    unfinished.write([(TurnPlace(1, 3), UnfinishedTurn(begun, finish))])
    kept = unfinished.groups()
    assert [(k.ticket, k.task, k.version) for k in kept] == [(t, TASKS[t], 5) for t in range(3)]
    assert [k.kept for k in kept] == [{}, {3: (UnfinishedTurn(begun, finish),)}, {}]


def test_taken_groups_are_used_and_dropped_ones_are_gone(unfinished, journal):
    turn = UnfinishedTurn(Tokens((1,), (-1.0,), (5,)))
    unfinished.write([(TurnPlace(t, 0), turn) for t in range(3)])
    unfinished.take([0, 2], 9)
    unfinished.drop([1])
    assert unfinished.groups() == [] == journal.read("SELECT * FROM written")
    used = journal.read("SELECT author, epoch, number, step, trained FROM used")
    assert used == [(b"", 7, 0, 9, 0), (b"", 7, 2, 9, 0)]


def test_going_back_to_a_policy_strikes_off_what_later_ones_wrote_and_what_followed_it(unfinished):
    early, late = Tokens((1, 2), (-1.0, -2.0), (3, 3)), Tokens((3, 4), (-1.0, -2.0), (3, 4))
    lower, cut = UnfinishedTurn(early, Finish.STOP, "lower"), UnfinishedTurn(late.first(1))
    written = {
        (0, 0): UnfinishedTurn(early, Finish.STOP),
        (0, 1): UnfinishedTurn(late, Finish.STOP),
        (1, 0): UnfinishedTurn(Tokens((5,), (-1.0,), (4,))),
        (2, 0, 0): lower,
        (2, 0, 1): UnfinishedTurn(late, Finish.STOP, "higher"),
        (2, 0, 2): UnfinishedTurn(early),
        (2, 1, 0): lower,
        (2, 1, 1): UnfinishedTurn(Tokens()),
    }
    unfinished.write([(TurnPlace(*place), turn) for place, turn in written.items()])
    assert unfinished.rewind(2, 3) == 5
    first, second, third = (group.kept for group in unfinished.groups())
    assert first == {0: (written[0, 0],), 1: (cut,)} and second == {0: (UnfinishedTurn(Tokens()),)}
    assert third == {0: (lower, cut), 1: (lower, UnfinishedTurn(Tokens()))}
    assert [kept.version for kept in unfinished.groups()] == [2, 2, 2]


class Judge(LocalJudge):
    """Plays environments, and notes every turn.

    Attributes:
        hold: names of environments that do not answer yet.
    """

    def __init__(self):
        super().__init__([spec("echo"), spec("drawing"), spec("passing"), spec("tripping")])
        self.moves: list[Move] = []
        self.hold: frozenset[str] = frozenset()
        self.held: list[tuple[Move, Future[Moved]]] = []

    def play_each(self, moves):
        self.moves += moves
        return [self.one(move) for move in moves]

    def one(self, move):
        if move.task.env not in self.hold:
            return super().play_each([move])[0]
        later: Future[Moved] = Future()
        self.held.append((move, later))
        return later

    def let_go(self):
        self.hold = frozenset()
        for move, later in self.held:
            later.set_result(super().play_each([move])[0].result())


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return Judge()


def engine(policy):
    """Writes what is polled for; every third token ends a turn."""
    policy.stop_ids = tuple(range(0, policy.vocabulary, 3))
    return TransformersEngine(policy, seed=0)


def playing(journal, judge, *names):
    return parts(journal, engine, judge, levels=[(name, 0) for name in names])


def check(made, groups):
    """That groups are what environments make of their turns, and what the policy read."""
    for group in groups:
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


def written(source, updates):
    return [group for _ in range(updates) for group in source.generate(3, Stopwatch())]


def test_groups_of_environments_fill_updates_and_each_is_replayed(journal, judge):
    made = playing(journal, judge, "echo", "drawing")
    groups = written(made.overlapping(1), 4)
    assert len(groups) == 12 and not made.counters.snapshot()
    check(made, groups)
    done = [completion for group in groups for completion in group.group.completions]
    assert {sum(s.writer is Writer.POLICY for s in each.segments) for each in done} >= {1, 2, 3}


def test_what_a_play_that_failed_has_left_in_the_engine_is_halted_with_the_rest(journal, judge):
    made = playing(journal, judge, "echo")
    source = made.overlapping(1)
    source.generate(1, Stopwatch())
    stray = SamplingRequest(1_000_000, (1, 2, 3), stream=1, lasts=True)
    made.engine.submit([stray], Sampling(max_new_tokens=400))
    source.close()
    assert made.engine.pause() == []


def test_a_trajectory_that_waits_for_its_environment_holds_up_no_other(journal, judge):
    judge.hold = frozenset({"drawing"})
    made = playing(journal, judge, "echo", "drawing")
    source = made.overlapping(4)
    assert {group.group.env for group in written(source, 1)} == {"echo"} and judge.held
    judge.let_go()
    later = written(source, 3)
    assert "drawing" in {group.group.env for group in later}
    check(made, later)


def test_a_stop_between_two_turns_goes_on_with_the_next_and_spells_nothing_again(journal, judge):
    made = playing(journal, judge, "echo", "drawing")
    source = made.begun(2)
    judge.hold = frozenset({"echo"})
    source.beside(lambda: None)
    source.close()
    left = {
        (group.task.index, number): kept
        for group in made.unfinished.groups()
        for number, kept in group.kept.items()
    }
    assert any(turn.observation is not None for kept in left.values() for turn in kept)
    judge.hold = frozenset()
    again = playing(journal, judge, "echo", "drawing")
    groups, resumed = written(again.overlapping(2, version=1), 3), 0
    check(again, groups)
    for group in groups:
        for number, done in enumerate(group.group.completions):
            segments = [s for s in done.segments if s.writer is Writer.POLICY]
            begun = left.get((group.group.index, number), ())
            for turn, segment in zip(begun, segments, strict=False):
                assert segment.tokens is not None
                assert segment.tokens.ids[: len(turn.tokens.ids)] == turn.tokens.ids
                resumed += 1
    assert resumed


def test_a_trajectory_that_a_stop_has_taken_its_environment_gives_up_its_group(journal, judge):
    made = playing(journal, judge, "passing")
    made.begun(2).close()
    begun = [kept for group in made.unfinished.groups() for kept in group.kept.values()]
    assert any(len(kept) > 1 for kept in begun)
    again = playing(journal, Judge(), "passing")
    written(again.overlapping(2, version=1), 3)
    assert again.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def test_a_lost_environment_gives_up_its_group_alone(journal, judge):
    class Lossy(Judge):
        def one(self, move):
            if move.task.env == "drawing":
                return settled(JudgeRefused(CRASHED, "gone"))
            return super().one(move)

    made = playing(journal, Lossy(), "echo", "drawing")
    groups = written(made.overlapping(1), 3)
    assert {group.group.env for group in groups} == {"echo"}
    assert made.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def test_own_turns_that_came_in_last_are_told_with_all_that_was_read_before_them(journal, judge):
    made = playing(journal, judge, "echo")
    for group in made.begun().newest():
        (done,) = group.completions
        assert isinstance(done, TrainingCompletion) and all(done.trained)
        assert made.policy.decode(group.prompt_ids).startswith("Say ")


def test_a_journal_from_before_a_checkpoint_is_cut_at_a_turn(journal, judge):
    made = playing(journal, judge, "echo", "drawing")
    source = made.overlapping(3)
    for made.policy.version in range(3):
        written(source, 1)
    source.close()
    unfinished = UnfinishedGroups(journal)
    assert unfinished.rewind(1, 0) > 0
    for kept in (kept for g in unfinished.groups() for kept in g.kept.values()):
        assert all(version == 0 for turn in kept for version in turn.tokens.versions)
        assert all(turn.observation is not None for turn in kept[:-1])
    again = playing(journal, judge, "echo", "drawing")
    check(again, written(again.overlapping(3, version=1), 1))
