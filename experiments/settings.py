"""The conditions that all arms of an experiment share, and a node's config under them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from experiments.answers import ANSWERS, Answers, Length
from experiments.arms import Arm
from experiments.bases import Base
from experiments.recipe.corpus import TaskSet
from experiments.regimes import EQUAL, Regime, Roles
from node.config.config import Config
from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, canonical_json, sign_manifest

EPOCH_SECONDS = 60.0
"""A round lasts an epoch of virtual time."""
START = 1_700_000_000.0
"""Unix time at which the virtual clock starts."""
MAX_AGE = 1.5 * EPOCH_SECONDS
"""A group published in one round can be taken in the next and in no later one, as in the paper."""
GROUPS_PER_EPOCH = 256
EVERY_NODE: Mapping[str, Any] = {
    "node.threads": 1,
    # Every announcement is in the hash table within the round; there is nothing to hear.
    "network.gossip_peers": 0,
    "policy.device": "cpu",
    "engine.group_size": 8,
    "mixture.max_age": MAX_AGE,
    "mixture.select": "uniform",
    "mixture.correction": "none",
    # The published rule knows no authors and refuses no text.
    "mixture.author_share": 1.0,
    "mixture.unproven_share": 1.0,
    "mixture.filters": [],
    "learner.lr": 3e-4,
    "learner.betas": [0.9, 0.99],
    # Nor has its update more than one step, whatever it took.
    "learner.groups_per_step": 0,
}
"""What a node is set up with, unless its arm says otherwise."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same in every arm.

    Attributes:
        nodes: in the swarm.
        rounds: of each node.
        model: where every seed's base policy comes from; empty: each seed makes one of its own.
        bury: steps on random answers that each seed then gives its base policy. They hide the
            skill deeper: fewer groups of the first rounds have anything to learn from.
        answers: how long they are, and so what the tasks and the base policies are.
        eval_every: rounds between two looks at held-out tasks.
        eval_tasks: held-out tasks in a look.
    """

    nodes: int = 8
    rounds: int = 300
    model: str = ""
    bury: int = 100
    answers: Length = "short"
    eval_every: int = 25
    eval_tasks: int = 64

    @property
    def set_up(self) -> Answers:
        """What goes with the length of answers."""
        return ANSWERS[self.answers]

    @property
    def catalogue(self) -> str:
        """Name of the tasks."""
        return self.set_up.tasks.catalogue

    @property
    def makes_bases(self) -> bool:
        """Whether seeds have base policies of their own."""
        unlike = self.set_up.unlike
        unshipped = unlike is not None and not unlike.shipped_wide
        return not self.model or self.bury > 0 or unshipped


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of an experiment: an arm under one seed in one regime."""

    arm: Arm
    seed: int
    regime: Regime = EQUAL

    @property
    def file_name(self) -> str:
        """Of its results, without an ending."""
        return f"{self.regime.name}.{self.arm.file_name}.{self.seed}"

    def roles(self, settings: Settings) -> Roles:
        """Of the nodes, by number."""
        return self.regime.roles(settings.nodes)

    def bases(self, settings: Settings) -> tuple[Base, ...]:
        """What its nodes start from, each kind once."""
        return tuple(dict.fromkeys(role.base for role in self.roles(settings)))


def node_identity(seed: int, number: int) -> Identity:
    """The key of node ``number``; its tasks follow from it."""
    return Identity.from_seed(sha256(f"swarm-node experiment {seed} {number}".encode()).digest())


def node_config(settings: Settings, run: Configuration, number: int, model: str) -> Config:
    """The config of node ``number``.

    Args:
        model: the base policy, a folder or a shipped model's name.

    Raises:
        ConfigError: an override of the arm is wrong.
    """
    arm, role = run.arm, run.roles(settings)[number]
    external = 0 if role.useless else arm.external
    rounds = len(role.span(settings.rounds))
    return Config.with_overrides(
        {
            **EVERY_NODE,
            "node.name": f"node-{number + 1}",
            "node.seed": 1000 * run.seed + number,
            # Who takes nothing from the pool need not fill it.
            "network.pulls_per_epoch": 16 if external else 0,
            "policy.model": model,
            "engine.max_new_tokens": settings.set_up.max_new_tokens,
            "mixture.local": arm.local,
            "mixture.external": external,
            "schedule.rounds": rounds,
            "schedule.eval_every": settings.eval_every,
            "schedule.eval_tasks": settings.eval_tasks,
            # There are no checkpoints; a configuration that was interrupted is run again.
            "schedule.checkpoint_every": rounds,
            **arm.overrides,
        }
    )


def signed_manifest(settings: Settings, run: Configuration) -> bytes:
    """The swarm that the nodes of a run form."""
    founder = node_identity(run.seed, 0)
    partial_credit = run.arm.partial_credit or run.regime.partial_credit
    manifest = Manifest(
        name="experiment",
        founder=founder.author,
        created=START,
        catalogue=catalogue(settings.set_up.tasks, partial_credit=partial_credit),
        epoch_seconds=EPOCH_SECONDS,
        max_groups_per_epoch=GROUPS_PER_EPOCH,
    )
    return sign_manifest(manifest, founder)


def catalogue(tasks: TaskSet, *, partial_credit: bool) -> tuple[EnvSpec, ...]:
    """The envs of an experiment, with the families' own scores as rewards where asked for."""
    specs = tasks.specs()
    if not partial_credit:
        return specs
    return tuple(replace(spec, levels=tuple(map(_partial, spec.levels))) for spec in specs)


def _partial(level: str) -> str:
    return canonical_json({**json.loads(level), "partial_credit": True})
