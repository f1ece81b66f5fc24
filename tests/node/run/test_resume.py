"""What a run goes on with."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import torch

from node.engines.transformers.engine import TransformersEngine
from node.evaluation.forgetting import ForgettingAlarm
from node.learner.learner import Learner
from node.run.resume import RunState
from node.storage.run_folder import RunFolder
from node.tasks.sampler import TaskSampler
from swarm.common.clock import VirtualClock
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.mixture.lead import PeersLead
from swarm.pool import Pool
from swarm.task_ref import Split, TaskRef
from tests.node.learner.test_learner import CONFIG, MIXED
from tests.support import random_policy

TASKS = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(4)]


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
    before.lead.observe(-0.2, 40)
    before.alarm.look([1.0, 0.0, 1.0, 1.0])
    RunState(folder, journal).save(3, before)

    progress = RunState(folder, journal)
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
    RunState(folder, journal).save(1, trainer())
    progress = RunState(folder, journal)
    for name in ("lead", "forgetting"):
        del progress.loaded.state[name]
    progress.restore(again := trainer(), pool)
    assert again.lead.worth == 1
    json.dumps(again.alarm.state_dict())
