"""Rounds whose groups are written beside them: age, order, conservation, crashes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import chain, repeat
from unittest.mock import DEFAULT, Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.virtual_clock import VirtualClock
from node.engines.engine import SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.errors import NodeError
from node.monitor.record import Stopwatch
from node.rollout.group_writer import UnfinishedGroups
from swarm.journal import MEMORY, Journal
from swarm.verification import CRASHED, JudgeRefused
from tests.node.rollout.overlap_parts import GROUP, AtOnce, Crash, Teacher, VirtualEngine, parts

BOTH = pytest.mark.parametrize("overlapping", [False, True])


@pytest.fixture
def journal():
    return Journal(MEMORY, VirtualClock(0.0))


@pytest.fixture
def made(journal):
    return parts(journal)


class Deferred(TransformersEngine):
    """The real engine: what is submitted is written when it is looked at."""

    def __init__(self, policy):
        super().__init__(policy, seed=3)
        self._submitted: list[SamplingRequest] = []

    def submit(self, trajectories, sampling):
        self._submitted += trajectories
        self._sampling = sampling

    def poll(self, seconds, stream=0):
        if not self._submitted:
            return []
        asked, self._submitted = self._submitted, []
        samples = self.generate([t.prompt for t in asked[::GROUP]], GROUP, self._sampling)
        return list(zip([t.key for t in asked], chain(*samples), strict=True))

    def nudge(self):
        """It never waits."""

    def pause(self):
        return []


def unfinished(made):
    """What is kept of completions that go on, the oldest groups first."""
    kept = [turns for g in made.unfinished.groups() for _, turns in sorted(g.kept.items())]
    return [turn.tokens for turns in kept for turn in turns if turn.finish is None]


def fresh(engine):
    return parts(Journal(MEMORY, VirtualClock(0.0)), engine)


@pytest.mark.parametrize("engine", [VirtualEngine, Deferred])
def test_without_staleness_the_rounds_are_those_of_the_alternate_schedule(engine):
    traces = []
    for overlapping in (False, True):
        made = fresh(engine)
        rounds = made.rounds(made.overlapping(0) if overlapping else made.tasks)
        for _ in range(4):
            rounds.step()
        told = [(o.round, o.policy_step, o.own, o.update) for o in made.outcomes]
        traces.append((told, made.published))
    assert traces[0] == traces[1]


@pytest.mark.parametrize(("engine", "wide"), [(VirtualEngine, True), (Deferred, False)])
def test_an_engine_whose_log_probs_are_not_the_learners_is_noticed(engine, wide, caplog):
    made = fresh(engine)
    made.rounds(made.tasks).step()
    assert ("engine_gaps" in made.counters.snapshot()) == wide
    assert ("differ from the learner's" in caplog.text) == wide


class Off(Deferred):
    """Says of every token that it is 0.1 nats more probable than it is."""

    def generate(self, prompts, n, sampling):
        return [[self._off(each) for each in row] for row in super().generate(prompts, n, sampling)]

    def _off(self, sample):
        logprobs = tuple(value + 0.1 for value in sample.tokens.logprobs)
        return replace(sample, tokens=replace(sample.tokens, logprobs=logprobs))


@BOTH
@pytest.mark.parametrize(("engine", "gap", "alarms"), [(Deferred, 0.0, 0), (Off, 0.1, 4)])
def test_an_engine_is_compared_with_the_learner_in_every_round(engine, gap, alarms, overlapping):
    """Also where no update has a token of the version that it begins with, but for the first."""
    made = fresh(engine)
    rounds = made.rounds(made.overlapping(1) if overlapping else made.tasks)
    updates = [rounds.step().update for _ in range(4)]
    assert [update.staleness[0] > 0 for update in updates[1:]] == 3 * [not overlapping]
    assert [update.engine_gap for update in updates] == pytest.approx(4 * [gap], abs=1e-4)
    assert made.counters.snapshot().get("engine_gaps", 0) == alarms


def test_an_engine_of_which_nothing_new_has_come_in_is_not_said_to_agree(journal):
    """Its completions are of the first version; the alarm is for what was measured."""
    made = parts(journal, Off)
    rounds = made.rounds(made.overlapping(1))
    rounds.step()
    made.engine.poll = lambda seconds: []
    assert rounds.step().update.engine_gap is None
    assert made.counters.snapshot() == {"engine_gaps": 1}


@pytest.mark.parametrize(("staleness", "share"), [(1, 0.0), (3, 0.0), (1, 1.0), (2, 0.5)])
def test_nothing_an_update_takes_is_older_than_the_bound(made, staleness, share):
    rounds = made.rounds(made.overlapping(staleness, oversample=share))
    ages, mixed = set(), 0
    for _ in range(12):
        outcome = rounds.step()
        assert len(outcome.own) == 3
        done = [completion for group in outcome.own for completion in group.group.completions]
        for versions in (segment.tokens.versions for each in done for segment in each.segments):
            assert list(versions) == sorted(versions)
            ages.add(outcome.policy_step - 1 - versions[0])
            mixed += versions[0] != versions[-1]
    assert max(ages) <= staleness
    if share:  # else it depends on how long an update takes
        assert max(ages) == staleness
        assert mixed, "some completions were gone on with by a later policy"


@pytest.mark.parametrize("sleep_mode", [False, True])
@pytest.mark.parametrize("fails", [False, True], ids=["learns", "fails after its first step"])
def test_an_engine_in_sleep_mode_rests_in_an_update_and_has_its_weights(journal, sleep_mode, fails):
    calls: list[str] = []
    made = parts(journal, lambda policy: VirtualEngine(policy, calls.append))
    rounds, learn = made.rounds(made.tasks, sleep_mode=sleep_mode), made.learner.update

    def update(*asked):
        calls.append("learn")
        stats = learn(*asked)
        if fails:
            raise ZeroDivisionError
        return stats

    made.learner.update = update
    for version in (1, 2):
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            rounds.step()
        assert made.engine.version == made.policy.version == version
    assert calls == 2 * [*(["sleep"] if sleep_mode else []), "learn", "update"]


def test_unfinished_completions_are_kept_while_the_policy_learns_and_resumed_first(made):
    source = made.overlapping(2, oversample=1.0)
    for _ in range(6):
        source.generate(3, Stopwatch())
        kept = unfinished(made)
        assert not made.engine.running
        resumed = len(made.engine.submitted)
        source.beside(lambda: None)
        assert len(made.engine.submitted) == resumed, "the engine stands still beside the work"
    assert kept
    before = len(made.engine.submitted)
    source.generate(3, Stopwatch())
    again = made.engine.submitted[before:]
    assert [t.tokens for t in again if t.tokens.ids] == [begun for begun in kept if begun.ids]
    assert [t.key for t in again] == sorted(t.key for t in again), "the oldest groups first"


def test_generation_and_scoring_go_on_beside_the_update(journal):
    made, quiet = parts(journal), threading.Event()
    source, look = made.begun(), made.engine.poll
    left = [ticket for ticket in range(6) if ticket in made.window.running]

    def poll(seconds):
        done = look(seconds)
        if not made.window.running:
            quiet.set()
        return done

    made.engine.poll = poll
    assert left
    assert source.beside(lambda: quiet.wait(20)), "all were scored before the update was over"


class SlowTeacher(Teacher):
    """Thinks about its first answers until it is told to go on."""

    def __init__(self):
        self.go_on = threading.Event()
        self.slow: int | None = None

    def judge(self, task, texts):
        if self.slow is None:
            self.slow = task.seed
            assert self.go_on.wait(20)
        return super().judge(task, texts)


def test_a_task_that_is_slow_to_score_delays_no_other(journal):
    teacher = SlowTeacher()
    made = parts(journal, teacher=teacher)
    source = made.overlapping(2, threads=ThreadPoolExecutor(2))
    assert [len(source.generate(3, Stopwatch())) for _ in range(2)] == [3, 3]
    (slow,) = [g.ticket for g in made.unfinished.groups() if g.task.ref.seed == teacher.slow]
    assert slow in made.window.running
    teacher.go_on.set()
    late = source.generate(3, Stopwatch())
    assert slow in {group.group.index for group in late}, "it is due, and waited for"


class Moody(Teacher):
    """Cannot build or score what it is asked, every other time."""

    calls = 0

    def judge(self, *args, **kwargs):
        self.calls += 1
        if self.calls % 2:
            raise JudgeRefused(CRASHED, "in a bad mood")
        return super().judge(*args, **kwargs)


def test_groups_that_cannot_be_scored_leave_their_place_empty_and_are_used_by_none(journal):
    made, seen = parts(journal, teacher=Moody(), version=7), []
    made.tasks.sampler.observe = lambda _, rewards: seen.append(rewards)
    source = made.overlapping(0, version=7)
    groups = source.generate(4, Stopwatch())
    used = journal.read("SELECT epoch, number, step FROM used ORDER BY number")
    assert used == [(*group.key, 7) for group in sorted(groups, key=lambda g: g.key)]
    assert len(groups) == len(seen) == 2 and not made.unfinished.groups()
    assert [len(source.generate(4, Stopwatch())) for _ in range(2)] == [2, 2]
    assert made.counters.snapshot()["own_groups_unscored{reason=crashed}"] == 6
    assert not made.unfinished.groups()


def test_a_failed_update_is_raised_and_the_next_round_goes_on(journal):
    source = parts(journal).begun()
    with pytest.raises(ZeroDivisionError):
        source.beside(lambda: 1 // 0)
    assert len(source.generate(3, Stopwatch())) == 3


def failing(made, error):
    """Let the engine fail from now on; set as soon as it has."""
    failed = threading.Event()

    def poll(seconds):
        failed.set()
        raise error

    made.engine.poll = poll
    return failed


def test_an_update_counts_when_generation_fails_beside_it(made, caplog):
    source, whole = made.begun(), made.engine.poll
    failed = failing(made, OSError("no more files"))
    assert source.beside(lambda: failed.wait(20) and "learned") == "learned"
    assert made.counters.snapshot() == {"generation_errors": 1}
    assert "generation failed during an update: no more files" in caplog.text
    with pytest.raises(OSError, match="no more files"):
        source.generate(3, Stopwatch())
    made.engine.poll = whole
    assert len(source.generate(3, Stopwatch())) == 3


class Poisoned(Teacher):
    """One of its tasks cannot be built, today as tomorrow."""

    def __init__(self):
        self.asked: dict[int, None] = {}

    def prompts(self, tasks):
        self.asked.update(dict.fromkeys(task.seed for task in tasks))
        if list(self.asked)[1] in [task.seed for task in tasks]:
            raise JudgeRefused(CRASHED, "this one cannot be built")
        return super().prompts(tasks)


@BOTH
def test_a_task_that_cannot_be_built_is_left_out_and_takes_no_other_with_it(journal, overlapping):
    made = parts(journal, teacher=Poisoned())
    source = made.overlapping(1) if overlapping else made.tasks
    assert [len(source.generate(3, Stopwatch())) for _ in range(3)] == [2, 3, 3]
    assert made.counters.snapshot() == {"own_groups_unscored{reason=crashed}": 1}


@BOTH
def test_a_verifier_that_can_build_nothing_ends_the_run(journal, overlapping):
    gone = Teacher()
    gone.prompts = Mock(side_effect=JudgeRefused(CRASHED, "the file is gone"))
    made = parts(journal, teacher=gone)
    rounds = made.rounds(made.overlapping(1) if overlapping else made.tasks)
    told = "no task can be generated" if overlapping else r"3 rounds failed.*none of 15 tasks"
    with pytest.raises(NodeError, match=told):
        rounds.run(200, threading.Event())


@pytest.mark.parametrize(
    ("engine", "update", "raised"),
    [
        (OSError("engine"), ValueError("update"), "engine"),
        (NodeError("engine", None, ""), ValueError("update"), "engine"),
        (OSError("engine"), NodeError("update", None, ""), "update"),
    ],
)
def test_if_generation_and_update_both_fail_both_are_told(made, engine, update, raised, caplog):
    source = made.begun()
    failed = failing(made, engine)

    def work():
        assert failed.wait(20)
        raise update

    with pytest.raises((OSError, NodeError), match=raised) as caught:
        source.beside(work)
    told = {"engine": (engine, update), "update": (update, engine)}[raised]
    assert (caught.value, caught.value.__cause__) == told
    assert f"both generation and the update failed: {told[1]}" in caplog.text


def test_a_stopped_node_goes_on_with_what_it_had_begun(made, journal):
    made.begun().close()
    kept = {group.task.index for group in made.unfinished.groups()}
    begun = [tokens for tokens in unfinished(made) if tokens.ids]
    again = parts(journal)
    groups = again.overlapping(1, version=1).generate(3, Stopwatch())
    assert begun and {g.group.index for g in groups} <= kept
    assert [t.tokens for t in again.engine.submitted if t.tokens.ids] == begun


def test_groups_of_tasks_that_are_no_longer_practised_are_dropped_and_counted(made, journal):
    made.begun()
    left = [group.task.ref.level for group in made.unfinished.groups()]
    again = parts(journal)
    again.tasks.sampler.levels = (("sums", 0),)
    again.overlapping(1, version=1)
    assert again.counters.snapshot()["own_groups_filtered{reason=task_gone}"] == left.count(1)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.sampled_from([(0, 0.0), (1, 0.0), (1, 1.0), (2, 0.5)]),
    st.integers(0, 3),
)
def test_a_crash_at_any_point_loses_no_group_and_trains_on_none_twice(
    tmp_path_factory, points, schedule, back
):
    """Restored checkpoints lie up to three updates back."""
    path, (staleness, share) = tmp_path_factory.mktemp("crash") / "journal.sqlite", schedule
    done, trained, filtered = 0, [], 0
    for point in [*points, 1 << 30]:
        journal = Journal(path, VirtualClock(0.0))
        calls = iter(range(point))

        def die(call, calls=calls):
            if next(calls, None) is None:
                raise Crash

        made = parts(journal, lambda policy, die=die: VirtualEngine(policy, die), version=done)
        kept = UnfinishedGroups(journal)
        kept.rewind(done, done)
        rounds = made.rounds(made.overlapping(staleness, oversample=share, version=done), done=done)
        with suppress(Crash):
            while rounds.round < done + 3:
                rounds.step()
        trained += [g.key for o in made.outcomes for g in o.own]
        filtered += sum(n for name, n in made.counters.snapshot().items() if "filtered" in name)
        buffered = {(g.task.epoch, g.task.index) for g in kept.groups()}
        ((started,),) = journal.read("SELECT coalesce(max(next), 0) FROM draws")
        used = journal.read("SELECT epoch, number FROM used WHERE author=x''")
        journal.close()
        done = max(0, rounds.round - back)
        assert len(trained) == len(set(trained))
        assert set(trained) <= set(used) and not buffered & set(used)
        assert started == len(used) + len(buffered) + filtered


def test_groups_that_are_too_old_after_a_restart_are_dropped_counted_and_not_written(made, journal):
    made.begun(2).close()
    left = made.unfinished.groups()
    old = {group.ticket for group in left}
    asked = made.teacher.prompts([group.task.ref for group in left])
    questions = {tuple(made.policy.encode_prompt(prompt)) for prompt in asked}
    again = parts(journal, version=5)
    assert len(again.overlapping(1, version=5).generate(3, Stopwatch())) == 3
    assert again.counters.snapshot() == {"own_groups_filtered{reason=stale}": len(old)}
    assert len(old) > 1 and not old & {group.ticket for group in again.unfinished.groups()}
    assert not questions & {trajectory.prompt for trajectory in again.engine.submitted}


def test_an_engine_that_is_gone_ends_the_run_though_the_update_went_well(made):
    source = made.begun()
    gone = failing(made, NodeError("the engine's process ended", None, "See node.log."))
    with pytest.raises(NodeError, match="process ended"):
        source.beside(lambda: gone.wait(20))
    assert made.counters.snapshot() == {}


def test_a_group_whose_scoring_failed_is_scored_again(made):
    errors = chain([OSError("no more processes")], repeat(DEFAULT))
    made.tasks.score = Mock(wraps=made.tasks.score, side_effect=errors)
    source = made.overlapping(0)
    with pytest.raises(OSError, match="no more processes"):
        source.generate(3, Stopwatch())
    assert len(source.generate(3, Stopwatch())) == 3


def test_whatever_is_waited_for_wakes_whoever_waits_for_the_engine(journal):
    made, waited, woken = parts(journal), [], []
    made.engine.nudge = lambda: woken.append(None)
    score, prompts = made.tasks.score, made.tasks.prompts
    made.tasks.score = lambda *each: waited.append("verdict") or score(*each)
    made.tasks.prompts = lambda tasks: waited.append("prompts") or prompts(tasks)
    source = made.begun(0)
    assert waited.count("verdict") == 3 and "prompts" in waited
    assert len(woken) == len(waited)
    source.beside(lambda: None)
    assert len(woken) == len(waited) + 1


def test_closing_lets_go_of_the_threads_that_wait_for_the_verifier(journal):
    threads, told = AtOnce(), []
    threads.shutdown = lambda **how: told.append(how)
    parts(journal).overlapping(1, threads=threads).close()
    assert told == [{"wait": False, "cancel_futures": True}]
