"""Async rounds: staleness, order, conservation of groups, and crashes."""

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
from swarm.verification import CRASHED, VerifierError
from tests.node.rollout.overlap_parts import GROUP, AtOnce, Crash, Teacher, VirtualEngine, parts
from tests.node.run.rounds_parts import Loop

BOTH = pytest.mark.parametrize("overlapping", [False, True])


@pytest.fixture
def journal():
    return Journal(MEMORY, VirtualClock(0.0))


@pytest.fixture
def made(journal):
    return parts(journal)


class Deferred(TransformersEngine):
    """The real engine, but it generates submitted requests when it is polled."""

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
        """Do nothing: this engine never waits."""

    def pause(self):
        return []


def unfinished(made):
    """Return the tokens of unfinished completions, oldest groups first."""
    kept = [turns for g in made.unfinished.groups() for _, turns in sorted(g.kept.items())]
    return [turn.tokens for turns in kept for turn in turns if turn.finish is None]


def fresh(engine):
    return parts(Journal(MEMORY, VirtualClock(0.0)), engine)


@pytest.mark.parametrize("engine", [VirtualEngine, Deferred])
def test_zero_staleness_matches_the_sync_schedule(engine):
    traces = []
    for overlapping in (False, True):
        made = fresh(engine)
        loop = Loop(made, made.overlapping(0) if overlapping else None, local=3)
        for _ in range(4):
            loop.rounds.step()
        figures = [(o.round, o.policy_step, o.local, o.update) for o in loop.outcomes]
        traces.append((figures, loop.published))
    assert traces[0] == traces[1]


@pytest.mark.parametrize(("engine", "wide"), [(VirtualEngine, True), (Deferred, False)])
def test_logprob_mismatch_is_counted_and_logged(engine, wide, caplog):
    made = fresh(engine)
    Loop(made, local=3).rounds.step()
    assert ("logprob_mismatches" in made.counters.snapshot()) == wide
    assert ("differ from the learner's" in caplog.text) == wide


class Off(Deferred):
    """Reports each token as 0.1 nats more probable than it is."""

    def generate(self, prompts, n, sampling):
        return [[self._off(each) for each in row] for row in super().generate(prompts, n, sampling)]

    def _off(self, sample):
        logprobs = tuple(value + 0.1 for value in sample.tokens.logprobs)
        return replace(sample, tokens=replace(sample.tokens, logprobs=logprobs))


@BOTH
@pytest.mark.parametrize(("engine", "gap", "alarms"), [(Deferred, 0.0, 0), (Off, 0.1, 4)])
def test_every_round_compares_engine_and_learner_logprobs(engine, gap, alarms, overlapping):
    """Later updates may have no token of their first version; the first always has."""
    made = fresh(engine)
    rounds = Loop(made, made.overlapping(1) if overlapping else None, local=3).rounds
    updates = [rounds.step().update for _ in range(4)]
    assert [update.staleness[0] > 0 for update in updates[1:]] == 3 * [not overlapping]
    assert [update.logprob_mismatch for update in updates] == pytest.approx(4 * [gap], abs=1e-4)
    assert made.counters.snapshot().get("logprob_mismatches", 0) == alarms


def test_mismatch_is_unknown_without_new_engine_samples(journal):
    """All completions are of the first version; only the first round raises an alarm."""
    made = parts(journal, Off)
    rounds = Loop(made, made.overlapping(1), local=3).rounds
    rounds.step()
    made.engine.poll = lambda seconds: []
    assert rounds.step().update.logprob_mismatch is None
    assert made.counters.snapshot() == {"logprob_mismatches": 1}


@pytest.mark.parametrize(("staleness", "share"), [(1, 0.0), (3, 0.0), (1, 1.0), (2, 0.5)])
def test_updates_never_exceed_the_staleness_bound(made, staleness, share):
    rounds = Loop(made, made.overlapping(staleness, oversample=share), local=3).rounds
    ages, mixed = set(), 0
    for _ in range(12):
        outcome = rounds.step()
        assert len(outcome.local) == 3
        done = [completion for group in outcome.local for completion in group.group.completions]
        for versions in (segment.tokens.versions for each in done for segment in each.segments):
            assert list(versions) == sorted(versions)
            ages.add(outcome.policy_step - 1 - versions[0])
            mixed += versions[0] != versions[-1]
    assert max(ages) <= staleness
    if share:  # otherwise it depends on the duration of an update
        assert max(ages) == staleness
        assert mixed, "a later policy continued some completions"


@pytest.mark.parametrize("sleep_mode", [False, True])
@pytest.mark.parametrize("fails", [False, True], ids=["learns", "fails after its first step"])
def test_sleep_mode_engine_sleeps_in_updates_and_gets_weights(journal, sleep_mode, fails):
    calls: list[str] = []
    made = parts(journal, lambda policy: VirtualEngine(policy, calls.append))
    loop = Loop(made, local=3, sleep_mode=sleep_mode)
    learn = loop.trained.learner.update

    def update(*asked):
        calls.append("learn")
        stats = learn(*asked)
        if fails:
            raise ZeroDivisionError
        return stats

    loop.trained.learner.update = update
    for version in (1, 2):
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            loop.rounds.step()
        assert made.engine.version == made.policy.version == version
    assert calls == 2 * [*(["sleep"] if sleep_mode else []), "learn", "update"]


def test_unfinished_completions_pause_in_updates_and_resume_first(made):
    source = made.overlapping(2, oversample=1.0)
    for _ in range(6):
        source.generate(3, Stopwatch())
        kept = unfinished(made)
        assert not made.engine.running
        resumed = len(made.engine.submitted)
        source.beside(lambda: None)
        assert len(made.engine.submitted) == resumed, "the engine is idle during the work"
    assert kept
    before = len(made.engine.submitted)
    source.generate(3, Stopwatch())
    again = made.engine.submitted[before:]
    assert [t.tokens for t in again if t.tokens.ids] == [begun for begun in kept if begun.ids]
    assert [t.key for t in again] == sorted(t.key for t in again), "oldest groups first"


def test_generation_and_scoring_run_during_the_update(journal):
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
    assert source.beside(lambda: quiet.wait(20)), "all groups are scored before the update ends"


class SlowTeacher(Teacher):
    """Blocks in its first verification until ``go_on`` is set."""

    def __init__(self):
        self.go_on = threading.Event()
        self.slow: int | None = None

    def verify(self, task, texts):
        if self.slow is None:
            self.slow = task.seed
            assert self.go_on.wait(20)
        return super().verify(task, texts)


def test_slow_scoring_does_not_delay_other_tasks(journal):
    teacher = SlowTeacher()
    made = parts(journal, teacher=teacher)
    source = made.overlapping(2, threads=ThreadPoolExecutor(2))
    assert [len(source.generate(3, Stopwatch())) for _ in range(2)] == [3, 3]
    (slow,) = [g.ticket for g in made.unfinished.groups() if g.task.ref.seed == teacher.slow]
    assert slow in made.window.running
    teacher.go_on.set()
    late = source.generate(3, Stopwatch())
    assert slow in {group.group.index for group in late}, "the update waits for a due group"


class Moody(Teacher):
    """Fails in every other verification, from the first on."""

    calls = 0

    def verify(self, *args, **kwargs):
        self.calls += 1
        if self.calls % 2:
            raise VerifierError(CRASHED, "in a bad mood")
        return super().verify(*args, **kwargs)


def test_unscorable_groups_leave_their_slot_empty_and_stay_unused(journal):
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


def test_failed_update_raises_and_the_next_round_works(journal):
    source = parts(journal).begun()
    with pytest.raises(ZeroDivisionError):
        source.beside(lambda: 1 // 0)
    assert len(source.generate(3, Stopwatch())) == 3


def failing(made, error):
    """Make the engine fail from now on; return an event that is set when it fails."""
    failed = threading.Event()

    def poll(seconds):
        failed.set()
        raise error

    made.engine.poll = poll
    return failed


def test_update_succeeds_if_generation_fails_meanwhile(made, caplog):
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
    """Verifier that can never build one of its tasks."""

    def __init__(self):
        self.asked: dict[int, None] = {}

    def prompts(self, tasks):
        self.asked.update(dict.fromkeys(task.seed for task in tasks))
        if list(self.asked)[1] in [task.seed for task in tasks]:
            raise VerifierError(CRASHED, "this one cannot be built")
        return super().prompts(tasks)


@BOTH
def test_unbuildable_task_is_skipped_without_losing_others(journal, overlapping):
    made = parts(journal, teacher=Poisoned())
    source = made.overlapping(1) if overlapping else made.tasks
    assert [len(source.generate(3, Stopwatch())) for _ in range(3)] == [2, 3, 3]
    assert made.counters.snapshot() == {"own_groups_unscored{reason=crashed}": 1}


@BOTH
def test_run_ends_if_the_verifier_builds_no_tasks(journal, overlapping):
    gone = Teacher()
    gone.prompts = Mock(side_effect=VerifierError(CRASHED, "the file is gone"))
    made = parts(journal, teacher=gone)
    rounds = Loop(made, made.overlapping(1) if overlapping else None, local=3).rounds
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
def test_failed_generation_and_update_are_both_shown(made, engine, update, raised, caplog):
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


def test_restarted_node_resumes_unfinished_groups(made, journal):
    made.begun().close()
    kept = {group.task.index for group in made.unfinished.groups()}
    begun = [tokens for tokens in unfinished(made) if tokens.ids]
    again = parts(journal)
    groups = again.overlapping(1, version=1).generate(3, Stopwatch())
    assert begun and {g.group.index for g in groups} <= kept
    assert [t.tokens for t in again.engine.submitted if t.tokens.ids] == begun


def test_groups_of_removed_tasks_are_dropped_and_counted(made, journal):
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
def test_crash_neither_loses_a_group_nor_trains_on_one_twice(
    tmp_path_factory, points, schedule, back
):
    """Restored checkpoints are up to three updates old."""
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
        source = made.overlapping(staleness, oversample=share, version=done)
        loop = Loop(made, source, local=3, done=done)
        with suppress(Crash):
            while loop.rounds.round < done + 3:
                loop.rounds.step()
        trained += [g.key for o in loop.outcomes for g in o.local]
        filtered += sum(n for name, n in made.counters.snapshot().items() if "filtered" in name)
        buffered = {(g.task.epoch, g.task.index) for g in kept.groups()}
        ((started,),) = journal.read("SELECT coalesce(max(next), 0) FROM draws")
        used = journal.read("SELECT epoch, number FROM used WHERE author=x''")
        journal.close()
        done = max(0, loop.rounds.round - back)
        assert len(trained) == len(set(trained))
        assert set(trained) <= set(used) and not buffered & set(used)
        assert started == len(used) + len(buffered) + filtered


def test_stale_groups_are_dropped_after_restart_and_not_resumed(made, journal):
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


def test_dead_engine_ends_the_run_despite_a_successful_update(made):
    source = made.begun()
    gone = failing(made, NodeError("the engine's process ended", None, "See node.log."))
    with pytest.raises(NodeError, match="process ended"):
        source.beside(lambda: gone.wait(20))
    assert made.counters.snapshot() == {}


def test_failed_group_scoring_is_retried(made):
    errors = chain([OSError("no more processes")], repeat(DEFAULT))
    made.tasks.score = Mock(wraps=made.tasks.score, side_effect=errors)
    source = made.overlapping(0)
    with pytest.raises(OSError, match="no more processes"):
        source.generate(3, Stopwatch())
    assert len(source.generate(3, Stopwatch())) == 3


def test_verifier_results_wake_the_engine_wait(journal):
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


def test_close_shuts_down_verifier_threads_without_waiting(journal):
    threads, told = AtOnce(), []
    threads.shutdown = lambda **how: told.append(how)
    parts(journal).overlapping(1, threads=threads).close()
    assert told == [{"wait": False, "cancel_futures": True}]
