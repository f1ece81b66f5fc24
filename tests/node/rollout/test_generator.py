import random
from itertools import cycle

import pytest

from experiments.virtual_clock import VirtualClock
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.errors import NodeError
from node.evaluation.evaluator import Evaluator
from node.monitor.record import Stopwatch
from node.rollout.generator import MANY_UNBUILT, MANY_UNFIT, Generator, TaskIndexes
from node.tasks.curriculum import TaskSampler
from node.tasks.scorer import Scorer
from protocol.announcement import epoch_of, task_seed
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.journal import MEMORY, Journal
from swarm.verification import CRASHED, Scores, VerifierError
from tests.support import random_policy

LONG = 600


class Teacher(Scorer):
    """Alternates short prompts and prompts that are too long; rewards every answer.

    Args:
        built: seeds of the tasks that can be built, or None for all.
        unscored: seeds of the tasks whose answers cannot be scored.
    """

    def __init__(self, lengths=(5, LONG), *, built=None, unscored=()):
        self._lengths, self._built, self._unscored = lengths, built, unscored

    def prompts(self, tasks):
        if self._built is not None and not {task.seed for task in tasks} <= {*self._built}:
            raise VerifierError(CRASHED, "this one cannot be built")
        return ["?" * self._lengths[n % len(self._lengths)] for n in range(len(tasks))]

    def verify(self, task, texts):
        if task.seed in self._unscored:
            raise VerifierError(CRASHED, "this one cannot be scored")
        return Scores("?", (1.0,) * len(texts))


def generator(teacher, counters, **changes):
    policy, clock = random_policy(), changes.pop("clock", SystemClock())
    sampler = TaskSampler([("sums", 0)], {}, random.Random(0))
    plain = {"author": bytes(32), "sampler": sampler, "group_size": 2}
    return Generator(
        policy=policy,
        engine=TransformersEngine(policy, seed=0),
        verifier=teacher,
        indexes=TaskIndexes(Journal(MEMORY, clock), clock, 60.0, 100, random.Random(0)),
        sampling=Sampling(max_new_tokens=2),
        counters=counters,
        **(plain | changes),
    )


def evaluated(teacher, counters, *samples):
    policy, sampling = random_policy(), Sampling(max_new_tokens=2)
    tasks = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(4)]
    engine = TransformersEngine(policy, seed=0)
    return Evaluator(policy, engine, teacher, tasks, sampling, counters).evaluate(*samples)


@pytest.mark.parametrize(
    ("lengths", "indexes", "counter"),
    [((5, LONG), [0, 2], "own_prompts_too_long"), ((0, 5), [1, 3], "own_prompts_empty")],
)
def test_tasks_with_empty_or_long_prompts_are_skipped_and_counted(lengths, indexes, counter):
    counters = Counters()
    groups = generator(Teacher(lengths), counters).generate(4, Stopwatch())
    assert [g.group.index for g in groups] == indexes and counters.snapshot() == {counter: 2}


def test_error_gives_both_lengths_if_no_prompt_fits(caplog):
    source = generator(Teacher((LONG, LONG + 7)), Counters())
    for _ in range(MANY_UNFIT - 1):
        assert source.generate(1, Stopwatch()) == []
    pattern = r"9 in a row have 600 to 607 .*context 512\. Choose a model"
    with pytest.raises(NodeError, match=pattern):
        source.generate(2, Stopwatch())
    generator(Teacher((5, LONG, LONG + 7)), Counters()).generate(3, Stopwatch())
    assert f"2 of 3 prompts, of up to {LONG + 7} tokens: they do not fit" in caplog.text


def test_occasional_long_prompts_do_not_end_generation():
    class Moody(Teacher):
        """Alternates prompts that are too long and short ones, from call to call."""

        def prompts(self, tasks):
            self._lengths = self._lengths[::-1]
            return ["?" * self._lengths[0]] * len(tasks)

    counters = Counters()
    source = generator(Moody(), counters)
    groups = [group for _ in range(2 * MANY_UNFIT) for group in source.generate(1, Stopwatch())]
    assert len(groups) == MANY_UNFIT
    assert counters.snapshot() == {"own_prompts_too_long": MANY_UNFIT}


def test_unfit_or_unbuilt_heldout_tasks_count_as_unsolved():
    assert evaluated(Teacher(), Counters()).rewards == ((1.0,), (0.0,), (1.0,), (0.0,))
    counters = Counters()
    evaluation = evaluated(Teacher((5,), built=(0, 2, 3)), counters, 2)
    assert evaluation.rewards == ((1.0, 1.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0))
    assert evaluation.unbuilt == 1
    assert counters.snapshot() == {"heldout_unbuilt{reason=crashed}": 1}


def test_unscored_heldout_task_counts_as_unsolved():
    counters = Counters()
    evaluation = evaluated(Teacher((5,), unscored=(1,)), counters, 2)
    assert evaluation.rewards == ((1.0, 1.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0))
    assert (evaluation.unbuilt, evaluation.means) == (1, (1.0, None, 1.0, 1.0))
    assert counters.snapshot() == {"heldout_unbuilt{reason=crashed}": 1}
    with pytest.raises(VerifierError, match="this one cannot be scored"):
        evaluated(Teacher((5,), unscored=range(4)), Counters())


def test_evaluation_and_generation_fail_if_no_task_can_be_built():
    """The number of tasks per call does not matter."""
    with pytest.raises(VerifierError, match="none of 4 tasks"):
        evaluated(Teacher((5,), built=()), Counters())
    with pytest.raises(VerifierError, match="none of 8 tasks"):
        generator(Teacher((5,), built=()), Counters()).generate(MANY_UNBUILT, Stopwatch())
    source = generator(Teacher((5,), built=()), Counters())
    assert [source.generate(1, Stopwatch()) for _ in range(MANY_UNBUILT - 1)] == [[]] * 7
    with pytest.raises(VerifierError, match="none of 8 tasks"):
        source.generate(1, Stopwatch())


class Noting(TaskSampler):
    """Cycles through its levels, and records the results of groups."""

    def __init__(self):
        super().__init__([("sums", 0), ("sums", 1), ("products", 0)], {}, random.Random(0))
        self.seen, self.next = [], cycle(self.levels).__next__

    def observe(self, pair, rewards):
        self.seen.append((pair, tuple(rewards)))


class Asking(Teacher):
    """Records requests; cannot build ``products``, or score tasks of ``lost`` seeds."""

    def __init__(self):
        super().__init__((5,))
        self.built, self.scored, self.lost = [], [], set()

    def prompts(self, tasks):
        if any(task.env == "products" for task in tasks):
            raise VerifierError(CRASHED, "no products today")
        self.built += tasks
        return super().prompts(tasks)

    def verify(self, task, texts):
        self.scored.append((task, len(texts)))
        if task.seed in self.lost:
            raise VerifierError(CRASHED, "it hangs")
        return Scores("?", tuple(float(n) for n in range(len(texts))))


def test_group_seeds_follow_from_author_time_slot_and_index(caplog):
    author, clock = b"\x07" * 32, VirtualClock(6000.0)
    sampler, teacher, counters = Noting(), Asking(), Counters()
    options = {"author": author, "sampler": sampler, "clock": clock, "group_size": 3}
    source = generator(teacher, counters, **options)
    epoch = epoch_of(clock.time(), 60.0)
    teacher.lost = {task_seed(author, epoch, index) for index in range(4)}
    groups = [each.group for each in source.generate(12, Stopwatch())]
    sampled = {TaskRef(g.env, g.level, task_seed(author, g.epoch, g.index)) for g in groups}
    assert {g.epoch for g in groups} == {epoch} and {g.level for g in groups} == {0, 1}
    assert all(len(g.completions) == 3 and g.rewards == (0.0, 1.0, 2.0) for g in groups)
    assert sampler.seen == [((g.env, g.level), g.rewards) for g in groups]
    unscored = {task.seed for task, _ in teacher.scored if task not in sampled}
    assert unscored and unscored <= teacher.lost
    assert {count for *_, count in teacher.scored} == {3}
    assert {task.split for task in teacher.built} == {Split.TRAIN}
    lost = counters.snapshot()["own_groups_unscored{reason=crashed}"]
    assert lost == 12 - len(groups)
    unbuilt = caplog.text.count("local group of products could not be scored")
    assert unbuilt == lost - len(unscored) > 0
