import random
import shutil
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from experiments.virtual_clock import VirtualClock
from node.config.learning import PolicySection
from node.config.sections import ScheduleSection
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.errors import CheckpointError
from node.evaluation.evaluator import ForgettingAlarm
from node.learner.learner import Learner
from node.monitor.record import RoundRecord
from node.monitor.sinks import JsonLinesFile
from node.run.resume import RunState
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from node.tasks.curriculum import TaskSampler
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.journal import Journal, backup_path
from swarm.peer_advantage import OWN, Earned, PeerAdvantage
from swarm.pool import Pool
from tests.node.learner.parts import CONFIG, MIXED, weights
from tests.support import random_policy
from tests.swarm.experience_parts import ANNA, lineage

AHEAD = [Earned(OWN, "sums", 0, (1.0, 1.0, 0.0)), Earned(ANNA, "sums", 0, (1.0, 0.0, 0.0))] * 12
"""Rewards of a node that is ahead of a peer."""
TASKS = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(4)]
MISSING = r"the checkpoints are missing and 12 rounds were done here: .*checkpoints\. Put them back"


class Place:
    """A run folder, its journal and its replay buffer."""

    def __init__(self, path):
        self.folder, clock = RunFolder(path).create(), VirtualClock(0.0)
        self.journal = Journal(self.folder.journal, clock)
        self.pool = Pool(self.journal, 8, 60.0, clock, Counters())

    def state(self, swarm="aa" * 32, **keys):
        return RunState(self.folder, self.journal, ScheduleSection(**keys), swarm)

    def did(self, rounds, **seconds):
        """Write records of rounds; ``seconds`` are the phase times of the last one."""
        with closing(JsonLinesFile(self.folder.metrics, 1 << 20)) as metrics:
            for number in range(1, rounds + 1):
                spent = seconds if number == rounds else {}
                metrics.write(RoundRecord(number, number, 0.0, reward_local=0.5, seconds=spent))

    def saved(self):
        return Checkpoints(self.folder.checkpoints).steps()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "run")


def trainer():
    """Return the parts of a trainer that a checkpoint stores."""
    policy, levels = random_policy(), [("sums", level) for level in range(9)]
    return SimpleNamespace(
        policy=policy,
        learner=Learner(policy, CONFIG),
        engine=TransformersEngine(policy, seed=0),
        sampler=TaskSampler(levels, {}, random.Random(0)),
        peer_advantage=PeerAdvantage(),
        alarm=ForgettingAlarm(Counters(), TASKS),
    )


def experienced():
    """Return a trainer after an update, an evaluation and task samples."""
    made = trainer()
    made.learner.update(MIXED)
    made.peer_advantage.observe(AHEAD, frozenset({ANNA}))
    made.alarm.look([1.0, 0.0, 1.0, 1.0])
    prompt = made.policy.encode_prompt("1 + 1?")
    for _ in range(5):
        made.sampler.next()
        made.engine.generate([prompt], 2, Sampling(max_new_tokens=4))
    return made


def draws(made):
    return made.engine.state_dict()["random"].tolist()


def test_restore_recovers_the_complete_trainer_state(place):
    before, after = experienced(), trainer()
    assert place.state().notes == ()
    place.state().save(3, before)
    progress = place.state()
    assert progress.notes == ("resuming from round 3, policy step 1, checkpoint step-00000003",)
    progress.restore(after, place.pool)
    assert progress.round == 3 and after.policy.version == before.policy.version == 1
    assert after.peer_advantage.worth == before.peer_advantage.worth < 1
    assert after.alarm.state_dict() == before.alarm.state_dict()
    assert draws(after) == draws(before)
    assert [after.sampler.next() for _ in range(9)] == [before.sampler.next() for _ in range(9)]


def test_restore_deletes_updates_after_the_checkpoint(place):
    place.pool.record_update(1, [(7, 1)], [])
    progress = place.state()
    progress.restore(trainer(), place.pool)
    assert progress.round == 0 and lineage(place.pool, 1) == [], "without a checkpoint"
    progress.save(3, experienced())
    assert progress.round == 3
    for step in (1, 2, 3):
        place.pool.record_update(step, [(7, step)], [])
    place.state().restore(trainer(), place.pool)
    assert [len(lineage(place.pool, step)) for step in (1, 2, 3)] == [1, 0, 0]


def test_save_backs_up_the_journal_and_resume_notes_damage(place):
    for number in (1, 2):
        place.state().save(number, trainer())
    assert backup_path(place.folder.journal).exists()
    (place.folder.checkpoints / "step-00000002" / "learner.pt").write_bytes(b"")
    progress = place.state()
    assert progress.round == 1
    assert any("step-00000002 is damaged" in note for note in progress.notes)


@pytest.mark.parametrize("entry", ["round", "dtype", "forgetting"])
def test_old_checkpoint_error_names_the_missing_entry(place, entry):
    place.state().save(3, trainer())
    checkpoints = Checkpoints(place.folder.checkpoints)
    state = checkpoints.load(3).state
    del state[entry]
    checkpoints.save(4, lambda folder: None, state)
    with pytest.raises(CheckpointError, match=rf"another version .* without '{entry}': .*00000004"):
        place.state()


def test_old_learner_state_is_reported_as_another_version(place):
    before = trainer()
    before.learner = Mock(state_dict=lambda: {"version": 1})
    place.state().save(3, before)
    with pytest.raises(CheckpointError, match=r"another version of swarm-node .* without"):
        place.state().restore(trainer(), place.pool)


def test_policy_resumes_with_its_weights(place, tmp_path):
    before, base = trainer(), tmp_path / "base"
    before.policy.save(base)
    before.policy.name = str(base)
    before.learner.update(MIXED)
    place.state().save(1, before)
    resumed = place.state().policy(PolicySection(model=str(base), device="cpu"))
    assert resumed.name == str(base) and torch.equal(weights(before.policy), weights(resumed))


def test_moved_node_keeps_its_policy_but_no_swarm_state(place):
    before, after, here, fresh = experienced(), trainer(), trainer(), trainer()
    place.state().save(3, before)
    place.state("bb" * 32).restore(after, place.pool)
    assert after.policy.version == 1 and draws(after) == draws(before)
    assert after.peer_advantage.worth == fresh.peer_advantage.worth
    assert after.alarm.state_dict() == fresh.alarm.state_dict()
    assert after.sampler.state_dict() == fresh.sampler.state_dict()
    place.state().restore(here, place.pool)
    assert here.sampler.state_dict() == before.sampler.state_dict()


@pytest.mark.parametrize(
    ("keys", "rewards", "kept"),
    [
        ({}, [0.1, 0.5, 0.7, 0.6, 0.2, 0.3], [3, 5, 6]),
        (
            {"keep_checkpoints": 3, "keep_best": 2},
            [0.9, 0.1, 0.8, 0.2, 0.3, 0.4, 0.5],
            [1, 3, 5, 6, 7],
        ),
    ],
)
def test_best_and_newest_checkpoints_are_kept_and_saved_once(place, keys, rewards, kept):
    progress, parts = place.state(**keys), trainer()
    for number, reward in enumerate(rewards, start=1):
        progress.save(number, parts)
        assert not progress.rate(number, reward), "the round has a checkpoint"
    assert place.saved() == kept and place.state(**keys).round == kept[-1]
    newest = place.folder.checkpoints / f"step-{kept[-1]:08}"
    written = newest.stat().st_ino
    for each in (progress, place.state(**keys)):
        each.save(kept[-1], parts)
        assert newest.stat().st_ino == written, "also after a restart"


def test_rate_requests_a_save_of_a_new_best_policy(place):
    progress = place.state()
    assert not progress.rate(0, 0.9), "round 0 is the initial model"
    assert progress.rate(5, 0.4)
    progress.save(5, trainer())
    assert [progress.rate(6, 0.3), progress.rate(7, 0.4)] == [False, True]
    assert not place.state(keep_best=0).rate(8, 1.0), "keep_best = 0 keeps none"
    assert place.state("bb" * 32).rate(9, 0.1), "another swarm has its own best"


def test_run_with_missing_checkpoints_does_not_restart(place):
    place.state().save(10, trainer())
    place.did(12)
    shutil.rmtree(place.folder.checkpoints / "step-00000010")
    with pytest.raises(CheckpointError, match=MISSING):
        place.state()
    place.folder.metrics.unlink()
    with pytest.raises(CheckpointError, match=r"the checkpoints are missing: .* start a new run"):
        place.state()


@pytest.mark.parametrize("left", [True, False], ids=["in an earlier swarm", "with the journal"])
def test_records_or_backup_reveal_missing_checkpoints(place, left):
    place.did(12, **({} if left else {"checkpoint": 0.1, "total": 0.2}))
    if left:
        swarm = place.folder.swarms / ("aa" * 32)
        swarm.mkdir(parents=True)
        place.journal.backup().rename(backup_path(swarm / place.folder.journal.name))
    with pytest.raises(CheckpointError, match=MISSING):
        place.state()


@pytest.mark.parametrize("damage", [b"", b"no record\n"], ids=["whole", "damaged"])
def test_node_killed_before_a_checkpoint_starts_over(place, damage):
    place.did(12, total=0.2)
    with place.folder.metrics.open("ab") as records:
        records.write(damage)
    progress = place.state(checkpoint_every=10)
    assert (progress.round, progress.notes) == (0, ())
