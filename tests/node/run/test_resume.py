"""What a run goes on with."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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
from swarm.common.clock import VirtualClock
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.journal import Journal, backup_path
from swarm.mixture.peer_advantage import OWN, Earned, PeersLead
from swarm.pool import Pool
from tests.node.learner.test_learner import CONFIG, MIXED
from tests.support import random_policy
from tests.swarm.experience_parts import ANNA

AHEAD = [
    Earned(author, "sums", 0, rewards)
    for author, rewards in ((OWN, (1.0, 1.0, 0.0)), (ANNA, (1.0, 0.0, 0.0)))
    for _ in range(12)
]
"""A node that is ahead of another."""
TASKS = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(4)]


def state(folder: RunFolder, journal: Journal, swarm: str = "aa" * 32, **keys: int) -> RunState:
    return RunState(folder, journal, ScheduleSection(**keys), swarm)


def trainer() -> SimpleNamespace:
    """The parts of a node's trainer that a checkpoint is made of."""
    policy = random_policy()
    return SimpleNamespace(
        policy=policy,
        learner=Learner(policy, CONFIG),
        engine=TransformersEngine(policy, seed=0),
        sampler=TaskSampler([("sums", 0)], {}, random.Random(0)),
        lead=PeersLead(),
        alarm=ForgettingAlarm(Counters(), TASKS),
    )


def test_what_a_node_knows_of_its_peers_and_of_itself_outlives_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    journal = Journal(folder.journal, VirtualClock(0.0))
    pool = Pool(journal, 8, 60.0, VirtualClock(0.0), Counters())
    before, after = trainer(), trainer()
    before.learner.update(MIXED)
    before.lead.observe(AHEAD, frozenset())
    before.alarm.look([1.0, 0.0, 1.0, 1.0])
    state(folder, journal).save(3, before)

    progress = state(folder, journal)
    progress.restore(after, pool)
    assert progress.round == 3
    assert after.policy.version == before.policy.version == 1
    assert after.lead.worth == before.lead.worth < 1
    assert after.alarm.state_dict() == before.alarm.state_dict()
    assert torch.equal(after.engine.state_dict()["random"], before.engine.state_dict()["random"])


def test_a_checkpoint_from_before_these_were_kept_is_gone_on_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    journal = Journal(folder.journal, VirtualClock(0.0))
    pool = Pool(journal, 8, 60.0, VirtualClock(0.0), Counters())
    state(folder, journal).save(1, trainer())
    progress = state(folder, journal)
    del progress.loaded.state["forgetting"]
    progress.loaded.state["lead"] = -0.2
    progress.restore(again := trainer(), pool)
    assert again.lead.worth == 1
    del progress.loaded.state["lead"]
    progress.restore(again, pool)
    assert again.lead.worth == 1
    json.dumps(again.alarm.state_dict())


def opened(path: Path) -> tuple[RunFolder, Journal, Pool]:
    folder = RunFolder(path).create()
    journal = Journal(folder.journal, VirtualClock(0.0))
    return folder, journal, Pool(journal, 8, 60.0, VirtualClock(0.0), Counters())


def test_draws_of_tasks_and_of_tokens_go_on_where_they_were(tmp_path: Path) -> None:
    folder, journal, pool = opened(tmp_path / "run")
    before, after = trainer(), trainer()
    levels = [("sums", level) for level in range(9)]
    for each in (before, after):
        each.sampler = TaskSampler(levels, {}, random.Random(0))
    prompt = before.policy.encode_prompt("1 + 1?")
    for _ in range(5):
        before.sampler.next()
        before.engine.generate([prompt], 2, Sampling(max_new_tokens=4))
    state(folder, journal).save(1, before)
    state(folder, journal).restore(after, pool)
    assert [after.sampler.next() for _ in range(9)] == [before.sampler.next() for _ in range(9)]
    assert torch.equal(after.engine.state_dict()["random"], before.engine.state_dict()["random"])


def test_updates_after_the_checkpoint_are_struck_and_those_before_it_stay(tmp_path: Path) -> None:
    folder, journal, pool = opened(tmp_path / "run")
    before = trainer()
    before.learner.update(MIXED)
    progress = state(folder, journal)
    progress.save(3, before)
    assert progress.round == 3
    for step in (1, 2, 3):
        pool.record_update(step, [(7, step)], [])
    state(folder, journal).restore(trainer(), pool)
    assert [len(pool.lineage(step)) for step in (1, 2, 3)] == [1, 0, 0]


def test_without_a_checkpoint_every_update_is_struck(tmp_path: Path) -> None:
    folder, journal, pool = opened(tmp_path / "run")
    pool.record_update(1, [(7, 1)], [])
    progress = state(folder, journal)
    progress.restore(trainer(), pool)
    assert progress.round == 0
    assert pool.lineage(1) == []


def test_a_checkpoint_comes_with_a_copy_of_the_journal_and_a_note_of_damage(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    for number in (1, 2):
        state(folder, journal).save(number, trainer())
    assert backup_path(folder.journal).exists()
    (folder.checkpoints / "step-00000002" / "learner.pt").write_bytes(b"")
    progress = state(folder, journal)
    assert progress.round == 1
    assert any("step-00000002 is damaged" in note for note in progress.notes)


def test_the_policy_goes_on_with_the_weights_that_it_had(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    base = tmp_path / "base"
    before = trainer()
    before.policy.save(base)
    before.policy.name = str(base)
    before.learner.update(MIXED)
    state(folder, journal).save(1, before)
    again = state(folder, journal).policy(PolicySection(model=str(base), device="cpu"))
    assert again.name == str(base)
    for old, new in zip(before.policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_node_that_moved_takes_its_policy_along_and_no_task_of_the_swarm_left(tmp_path) -> None:
    folder, journal, pool = opened(tmp_path / "run")
    before, after, here = trainer(), trainer(), trainer()
    before.learner.update(MIXED)
    before.lead.observe(AHEAD, frozenset())
    before.alarm.look([1.0, 0.0, 1.0, 1.0])
    before.sampler.next()
    state(folder, journal).save(3, before)
    state(folder, journal, "bb" * 32).restore(after, pool)
    assert after.policy.version == 1
    assert torch.equal(after.engine.state_dict()["random"], before.engine.state_dict()["random"])
    fresh = trainer()
    assert after.lead.worth == fresh.lead.worth
    assert after.alarm.state_dict() == fresh.alarm.state_dict()
    assert after.sampler.state_dict() == fresh.sampler.state_dict()
    state(folder, journal).restore(here, pool)
    assert here.sampler.state_dict() == before.sampler.state_dict()


def test_where_a_run_goes_on_is_said(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    assert state(folder, journal).notes == ()
    before = trainer()
    before.learner.update(MIXED)
    state(folder, journal).save(3, before)
    said = "goes on from round 3, policy step 1, checkpoint step-00000003"
    assert state(folder, journal).notes == (said,)


def saved(folder: RunFolder) -> list[int]:
    return Checkpoints(folder.checkpoints).steps()


def test_the_best_policy_stays_beside_the_newest(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    progress, parts = state(folder, journal), trainer()
    for number, reward in enumerate([0.1, 0.5, 0.7, 0.6, 0.2, 0.3], start=1):
        progress.save(number, parts)
        assert not progress.rate(number, reward), "it has its checkpoint"
    assert saved(folder) == [3, 5, 6]
    assert state(folder, journal).round == 6


def test_a_policy_that_is_the_best_between_checkpoints_is_to_be_saved(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    progress, parts = state(folder, journal), trainer()
    assert not progress.rate(0, 0.9), "it is the model that was begun with"
    assert progress.rate(5, 0.4)
    progress.save(5, parts)
    assert [progress.rate(6, 0.3), progress.rate(7, 0.4)] == [False, True]
    assert not state(folder, journal, keep_best=0).rate(8, 1.0), "nobody wants one"
    assert state(folder, journal, "bb" * 32).rate(9, 0.1), "in another swarm it is"


def test_as_many_are_kept_as_the_config_says(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    progress, parts = state(folder, journal, keep_checkpoints=3, keep_best=2), trainer()
    for number, reward in enumerate([0.9, 0.1, 0.8, 0.2, 0.3, 0.4, 0.5], start=1):
        progress.save(number, parts)
        progress.rate(number, reward)
    assert saved(folder) == [1, 3, 5, 6, 7]


def test_a_round_is_written_once(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    progress, parts = state(folder, journal), trainer()
    progress.save(3, parts)
    written = (folder.checkpoints / "step-00000003").stat().st_ino
    progress.save(3, parts)
    assert (folder.checkpoints / "step-00000003").stat().st_ino == written


def did(folder: RunFolder, rounds: int, **seconds: float) -> None:
    """Leave the records of that many rounds, the last of which took so long."""
    with closing(JsonLinesFile(folder.metrics, 1 << 20)) as metrics:
        for number in range(1, rounds + 1):
            spent = seconds if number == rounds else {}
            metrics.write(RoundRecord(number, number, 0.0, reward_own=0.5, seconds=spent))


GONE = r"the checkpoints are gone and 12 rounds were done here: .*checkpoints\. Put them back"


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    state(folder, journal).save(10, trainer())
    did(folder, 12)
    shutil.rmtree(folder.checkpoints / "step-00000010")
    with pytest.raises(CheckpointError, match=GONE):
        state(folder, journal)
    folder.metrics.unlink()
    with pytest.raises(CheckpointError, match=r"the checkpoints are gone: .* begin anew in anothe"):
        state(folder, journal)


def test_checkpoints_that_went_with_the_journal_and_its_backup_are_missed(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    did(folder, 12, checkpoint=0.1, total=0.2)
    with pytest.raises(CheckpointError, match=GONE):
        state(folder, journal)


def test_checkpoints_that_were_written_in_a_swarm_left_since_are_missed(tmp_path: Path) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    did(folder, 12)
    left = folder.swarms / ("aa" * 32)
    left.mkdir(parents=True)
    journal.backup(backup_path(left / folder.journal.name))
    with pytest.raises(CheckpointError, match=GONE):
        state(folder, journal)


@pytest.mark.parametrize("damage", [b"", b"no record\n"], ids=["whole", "damaged"])
def test_a_node_killed_before_its_first_checkpoint_begins_again(
    tmp_path: Path, damage: bytes
) -> None:
    folder, journal, _ = opened(tmp_path / "run")
    did(folder, 12, total=0.2)
    with folder.metrics.open("ab") as records:
        records.write(damage)
    progress = state(folder, journal, checkpoint_every=10)
    assert (progress.round, progress.notes) == (0, ())
