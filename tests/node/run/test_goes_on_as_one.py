"""A resumed run has the same samples, weights and reports as an uninterrupted one.

The node is alone, in ``sync`` mode and in one time slot, because tasks depend on the time slot.
"""

import threading
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import pytest
import torch

from experiments.virtual_clock import VirtualClock
from node.run.resume import RunState
from node.run.training_loop import Trainer, open_experience
from node.run.update_groups import Outcome
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.verification import Scores
from tests.library_privates import flattened
from tests.node.rollout.overlap_parts import Teacher
from tests.node.run.trainer_parts import configured
from tests.swarm.experience_parts import START
from tests.swarm.network_parts import manifest

HALF = 3


class Capricious(Teacher):
    """Derives the reward from a hash of the text."""

    def verify(self, task, texts):
        digests = [sha256(text.encode()).digest() for text in texts]
        return Scores("?", tuple(digest[0] / 255 for digest in digests))


@dataclass(frozen=True)
class Run:
    """Outcomes and final state of a run; rounds exclude times and evaluations."""

    outcomes: list[Outcome]
    weights: torch.Tensor
    learner: dict[str, Any]
    engine: torch.Tensor
    sampler: dict[str, Any]
    alarm: dict[str, Any]

    @property
    def rounds(self):
        done = self.outcomes
        return [
            (o.round, o.policy_step, [g.training for g in o.local], asdict(o.update)) for o in done
        ]

    @property
    def evaluations(self):
        return {o.round: o.evaluation for o in self.outcomes if o.evaluation is not None}


def config_of(**changes):
    keys = {"learner__lr": 1e-3, "schedule__eval_every": 2, **changes}
    return configured(policy__model="tiny", learner__epochs=2, mixture__correction="none", **keys)


def run(path, limit, config):
    """Start or resume a run and train up to the round ``limit``."""
    folder, clock, counters = RunFolder(path).create(), VirtualClock(START), Counters()
    journal = Journal(folder.journal, clock)
    experience = open_experience(config.mixture, journal, clock, counters, b"salt")
    progress = RunState(folder, journal, config.schedule, "aa" * 32)
    trainer = Trainer(
        config,
        progress.policy(config.policy),
        author=bytes(32),
        manifest=manifest(max_groups_per_epoch=1 << 16),
        levels=[("sums", 0), ("sums", 1)],
        verifier=Capricious(),
        experience=experience,
        clock=clock,
        counters=counters,
        secret=b"secret",
    )
    progress.restore(trainer, experience.pool)
    outcomes: list[Outcome] = []
    rounds = trainer.rounds(
        publish=lambda groups, origin: None,
        save=lambda number: progress.save(number, trainer),
        rate=progress.rate,
        report=outcomes.append,
        done=progress.round,
    )
    rounds.run(limit, threading.Event())
    trainer.close()
    journal.close()
    return Run(
        outcomes,
        torch.cat([p.detach().flatten() for p in trainer.policy.model.parameters()]).clone(),
        trainer.learner.state_dict(),
        trainer.engine.state_dict()["random"],
        trainer.sampler.state_dict(),
        trainer.alarm.state_dict(),
    )


@pytest.mark.parametrize(
    ("library", "changes"),
    [
        ("torch", {"learner__optimizer": "adamw"}),
        ("bitsandbytes", {"learner__optimizer": "adamw8bit"}),
        ("peft", {"policy__lora_rank": 4, "learner__lr": 1e-2}),
    ],
    ids=["adamw", "adamw8bit", "lora"],
)
def test_resumed_run_equals_an_uninterrupted_run(tmp_path, library, changes):
    pytest.importorskip(library)
    config = config_of(**changes)
    first = run(tmp_path / "halves", HALF, config)
    second = run(tmp_path / "halves", 2 * HALF, config)
    whole = run(tmp_path / "whole", 2 * HALF, config)
    assert all(not outcome.update.skipped for outcome in whole.outcomes)
    assert first.rounds + second.rounds == whole.rounds
    assert torch.equal(second.weights, whole.weights)
    assert not torch.equal(first.weights, whole.weights)
    assert torch.equal(second.engine, whole.engine) and second.sampler == whole.sampler
    (resumed, layout), (original, same) = map(flattened, (second.learner, whole.learner))
    assert layout == same
    for each, expected in zip(resumed, original, strict=True):
        assert torch.equal(each, expected) if torch.is_tensor(each) else each == expected


@pytest.mark.parametrize("every", [1, 3, 1 << 20])
def test_evaluation_frequency_does_not_affect_training(tmp_path, every):
    often = run(tmp_path / "often", 4, config_of())
    other = run(tmp_path / "other", 4, config_of(schedule__eval_every=every))
    assert often.evaluations.keys() != other.evaluations.keys()
    assert often.rounds == other.rounds and torch.equal(often.weights, other.weights)


def test_evaluation_of_equal_weights_is_reproducible(tmp_path):
    """The last round of a run and the first round after it evaluate one policy."""
    config = config_of(schedule__eval_every=1, schedule__eval_tasks=16)
    first = run(tmp_path / "run", 2, config)
    second = run(tmp_path / "run", 4, config)
    whole = run(tmp_path / "whole", 4, config)
    assert first.evaluations[2] == second.evaluations[3] == whole.evaluations[3] > 0.0
    assert len(set(whole.evaluations.values())) > 1 and second.alarm == whole.alarm
