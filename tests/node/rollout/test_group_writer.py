"""Trajectories are sampled and answered during updates, and survive a restart."""

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.recipe.local_verifier import LocalVerifier
from experiments.virtual_clock import VirtualClock
from node.engines.engine import Sampling, SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.learner.batches import TrainingCompletion
from node.monitor.record import Stopwatch
from node.rollout.group_writer import TurnPlace, UnfinishedGroups, UnfinishedTurn
from node.rollout.groups import LocalTask
from node.tasks.scorer import Move, Moved, settled
from protocol.rollout import Finish, Tokens, Writer
from swarm.groups import TaskRef
from swarm.journal import MEMORY, Journal
from swarm.verification import CRASHED, VerifierError
from tests.node.environments.parts import FOR_TESTS, spec
from tests.node.rollout.overlap_parts import LIMITS, parts

TASKS = [LocalTask(TaskRef("sums", n, (1 << 63) - 1 - n), epoch=7, index=n) for n in range(3)]

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
def test_unfinished_turns_round_trip_exactly(begun, finish):
    unfinished = UnfinishedGroups(Journal(MEMORY, VirtualClock(0.0)))
    unfinished.begin(enumerate(TASKS), 5)
    unfinished.write([(TurnPlace(1, 3), UnfinishedTurn(begun, finish))])
    kept = unfinished.groups()
    assert [(k.ticket, k.task, k.version) for k in kept] == [(t, TASKS[t], 5) for t in range(3)]
    assert [k.kept for k in kept] == [{}, {3: (UnfinishedTurn(begun, finish),)}, {}]


def test_taken_groups_are_used_and_dropped_ones_deleted(unfinished, journal):
    turn = UnfinishedTurn(Tokens((1,), (-1.0,), (5,)))
    unfinished.write([(TurnPlace(t, 0), turn) for t in range(3)])
    unfinished.take([0, 2], 9)
    unfinished.drop([1])
    assert unfinished.groups() == [] == journal.read("SELECT * FROM written")
    used = journal.read("SELECT author, epoch, number, step, trained FROM used")
    assert used == [(b"", 7, 0, 9, 0), (b"", 7, 2, 9, 0)]


def test_rewind_removes_later_policy_tokens_and_following_turns(unfinished):
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


class Verifier(LocalVerifier):
    """Plays environments, and records every turn.

    Attributes:
        hold: Names of environments that do not answer yet.
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
def verifier(monkeypatch):
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return Verifier()


def engine(policy):
    """Return a real engine; every third token ends a turn."""
    policy.stop_ids = tuple(range(0, policy.vocabulary, 3))
    return TransformersEngine(policy, seed=0)


def playing(journal, verifier, *names):
    return parts(journal, engine, verifier, levels=[(name, 0) for name in names])


def check(made, groups):
    """Check that groups match their environments' turns and the policy's inputs."""
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


def test_environment_groups_fill_updates_and_match_replays(journal, verifier):
    made = playing(journal, verifier, "echo", "drawing")
    groups = written(made.overlapping(1), 4)
    assert len(groups) == 12 and not made.counters.snapshot()
    check(made, groups)
    done = [completion for group in groups for completion in group.group.completions]
    assert {sum(s.writer is Writer.POLICY for s in each.segments) for each in done} >= {1, 2, 3}


def test_close_removes_stray_requests_from_the_engine(journal, verifier):
    made = playing(journal, verifier, "echo")
    source = made.overlapping(1)
    source.generate(1, Stopwatch())
    stray = SamplingRequest(1_000_000, (1, 2, 3), stream=1, lasts=True)
    made.engine.submit([stray], Sampling(max_new_tokens=400))
    source.close()
    assert made.engine.pause() == []


def test_waiting_for_one_environment_does_not_block_others(journal, verifier):
    verifier.hold = frozenset({"drawing"})
    made = playing(journal, verifier, "echo", "drawing")
    source = made.overlapping(4)
    assert {group.group.env for group in written(source, 1)} == {"echo"} and verifier.held
    verifier.let_go()
    later = written(source, 3)
    assert "drawing" in {group.group.env for group in later}
    check(made, later)


def test_restart_resumes_at_the_next_turn_without_resampling(journal, verifier):
    made = playing(journal, verifier, "echo", "drawing")
    source = made.begun(2)
    verifier.hold = frozenset({"echo"})
    source.beside(lambda: None)
    source.close()
    left = {
        (group.task.index, number): kept
        for group in made.unfinished.groups()
        for number, kept in group.kept.items()
    }
    assert any(turn.observation is not None for kept in left.values() for turn in kept)
    verifier.hold = frozenset()
    again = playing(journal, verifier, "echo", "drawing")
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


def test_group_is_dropped_if_a_restart_loses_its_environment(journal, verifier):
    made = playing(journal, verifier, "passing")
    made.begun(2).close()
    begun = [kept for group in made.unfinished.groups() for kept in group.kept.values()]
    assert any(len(kept) > 1 for kept in begun)
    again = playing(journal, Verifier(), "passing")
    written(again.overlapping(2, version=1), 3)
    assert again.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def test_lost_environment_drops_only_its_group(journal, verifier):
    class Lossy(Verifier):
        def one(self, move):
            if move.task.env == "drawing":
                return settled(VerifierError(CRASHED, "gone"))
            return super().one(move)

    made = playing(journal, Lossy(), "echo", "drawing")
    groups = written(made.overlapping(1), 3)
    assert {group.group.env for group in groups} == {"echo"}
    assert made.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def test_newest_local_turns_include_their_full_context(journal, verifier):
    made = playing(journal, verifier, "echo")
    for group in made.begun().newest():
        (done,) = group.completions
        assert isinstance(done, TrainingCompletion) and all(done.trained)
        assert made.policy.decode(group.prompt_ids).startswith("Say ")


def test_rewind_truncates_trajectories_at_a_turn(journal, verifier):
    made = playing(journal, verifier, "echo", "drawing")
    source = made.overlapping(3)
    for made.policy.version in range(3):
        written(source, 1)
    source.close()
    unfinished = UnfinishedGroups(journal)
    assert unfinished.rewind(1, 0) > 0
    for kept in (kept for g in unfinished.groups() for kept in g.kept.values()):
        assert all(version == 0 for turn in kept for version in turn.tokens.versions)
        assert all(turn.observation is not None for turn in kept[:-1])
    again = playing(journal, verifier, "echo", "drawing")
    check(again, written(again.overlapping(3, version=1), 1))
