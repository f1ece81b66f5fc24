"""Conditions shared by all arms, a node's config, and the state its swarm shares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from transformers import PreTrainedModel

from experiments.arms import Arm
from experiments.memory_transport import MemoryNetwork
from experiments.recipe.corpus import TaskSet
from experiments.recipe.local_verifier import LocalVerifier
from experiments.regimes import EQUAL, TRIGGER, Regime, Roles
from experiments.setups import SETUPS, Base, Length, Setup
from experiments.virtual_clock import VirtualClock
from node.config.config import Config
from node.config.learning import PolicySection
from node.policy.policy import Policy
from node.run.update_groups import Rules
from protocol.frame import open_frame
from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, canonical_json, open_manifest, sign_manifest

EPOCH_SECONDS = 60.0  # virtual seconds per round: one time slot
START = 1_700_000_000.0  # unix time at which the virtual clock starts
MAX_AGE = 1.5 * EPOCH_SECONDS
"""Groups of one round are usable in the next round only, as in the SAPO paper."""
GROUPS_PER_EPOCH = 256
EVERY_NODE: Mapping[str, Any] = {
    "node.threads": 1,
    # The DHT holds every announcement within the round, so gossip adds nothing.
    "network.gossip_peers": 0,
    "engine.group_size": 8,
    "mixture.max_age": MAX_AGE,
    "mixture.select": "uniform",
    "mixture.correction": "none",
    # The published method has no limits on authors or peers' answers, and no filters.
    "mixture.author_share": 1.0,
    "mixture.peer_ratio": 0.0,
    "mixture.unproven_share": 1.0,
    "mixture.filters": [],
    "learner.betas": [0.9, 0.99],
    # The published method has one optimizer step per update.
    "learner.groups_per_step": 0,
    "tasks.curriculum": "uniform",
}
"""Config keys of every node, unless its arm overrides them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Conditions that are the same in every arm."""

    nodes: int = 8
    rounds: int = 300
    model: str = ""  # origin of every seed's base policy; empty: each seed makes its own
    bury: int = 100  # steps of noise fine-tuning; with more, fewer first groups are informative
    answers: Length = "short"  # name of the setup, which fixes the tasks and the base policies
    eval_every: int = 25  # rounds between two evaluations on held-out tasks
    eval_tasks: int = 64  # held-out tasks per evaluation
    device: str = "cpu"
    dtype: str = "float32"
    lr: float = 3e-4
    warm_start: int = (
        0  # supervised steps on examples of the tasks that the base policies begin with
    )

    @property
    def setup(self) -> Setup:
        return SETUPS[self.answers]

    @property
    def task_set(self) -> str:
        return self.setup.tasks.name

    def policy(self, model: str) -> PolicySection:
        """Return the section of a policy; raise ConfigError for an unknown device or dtype."""
        keys = {"policy.model": model, "policy.device": self.device, "policy.dtype": self.dtype}
        return Config.with_overrides(keys).policy

    @property
    def makes_bases(self) -> bool:
        """Report whether each seed makes base policies of its own."""
        unlike = self.setup.unlike
        unshipped = unlike is not None and not unlike.shipped_wide
        return not self.model or self.bury > 0 or unshipped or self.warm_start > 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of an experiment: an arm under one seed in one regime."""

    arm: Arm
    seed: int
    regime: Regime = EQUAL

    @property
    def file_name(self) -> str:
        return f"{self.regime.name}.{self.arm.file_name}.{self.seed}"

    def roles(self, settings: Settings) -> Roles:
        return self.regime.roles(settings.nodes)

    def bases(self, settings: Settings) -> tuple[Base, ...]:
        """Return the base policies of its nodes, each once."""
        return tuple(dict.fromkeys(role.base for role in self.roles(settings)))


def node_identity(seed: int, number: int) -> Identity:
    return Identity.from_seed(sha256(f"swarm-node experiment {seed} {number}".encode()).digest())


def node_config(settings: Settings, run: Configuration, number: int, model: str) -> Config:
    """Return the config of node ``number``; raise ConfigError for a wrong override of the arm.

    Args:
        model: base policy, a folder or a shipped model's name.
    """
    arm, role = run.arm, run.roles(settings)[number]
    external = 0 if role.useless else arm.external
    rounds = len(role.span(settings.rounds))
    return Config.with_overrides(
        {
            **EVERY_NODE,
            **settings.setup.keys,
            "policy.device": settings.device,
            "policy.dtype": settings.dtype,
            "learner.lr": settings.lr,
            "node.name": f"node-{number + 1}",
            "node.seed": 1000 * run.seed + number,
            # A node without peer groups pulls nothing.
            "network.pulls_per_epoch": 16 if external else 0,
            "policy.model": model,
            "engine.max_new_tokens": settings.setup.max_new_tokens,
            "mixture.local": arm.local,
            "mixture.external": external,
            "schedule.rounds": rounds,
            "schedule.eval_every": settings.eval_every,
            "schedule.eval_tasks": settings.eval_tasks,
            # The whole run is saved instead (experiments.run_state).
            "schedule.checkpoint_every": rounds,
            **arm.overrides,
        }
    )


def signed_manifest(settings: Settings, run: Configuration) -> bytes:
    creator = node_identity(run.seed, 0)
    partial_credit = run.arm.partial_credit or run.regime.partial_credit
    manifest = Manifest(
        name="experiment",
        founder=creator.author,
        created=START,
        catalogue=task_families(settings.setup.tasks, partial_credit=partial_credit),
        epoch_seconds=EPOCH_SECONDS,
        max_groups_per_epoch=GROUPS_PER_EPOCH,
    )
    return sign_manifest(manifest, creator)


def task_families(tasks: TaskSet, *, partial_credit: bool) -> tuple[EnvSpec, ...]:
    """Return the task families, with their own scores as rewards if ``partial_credit``."""
    specs = tasks.specs()
    if not partial_credit:
        return specs
    return tuple(replace(spec, levels=tuple(map(_partial, spec.levels))) for spec in specs)


def _partial(level: str) -> str:
    return canonical_json({**json.loads(level), "partial_credit": True})


SHARES_ALL = Rules(fill=False, discard=False)
REMEMBERED_FRAMES = 256  # frames of some rounds: each is opened once for all nodes


class SwarmContext:
    """Clock, network, manifest, verifier and base policies that the nodes of one swarm share.

    Args:
        run: arm, seed and regime.
        models: base policies of the regime: folders or shipped models' names.
    """

    def __init__(self, settings: Settings, run: Configuration, models: Mapping[Base, str]) -> None:
        self.settings = settings
        self.run = run
        self.roles = run.roles(settings)
        self.clock = VirtualClock(START)
        self.network = MemoryNetwork(self.clock, run.seed)
        self.signed = signed_manifest(settings, run)
        self.manifest: Manifest = open_manifest(self.signed)
        verbatim = settings.setup.tasks.verbatim
        self.verifier = LocalVerifier(self.manifest.catalogue, verbatim=verbatim)
        self.open_frame = lru_cache(REMEMBERED_FRAMES)(open_frame)
        self._bases = {kind: Policy.load(settings.policy(model)) for kind, model in models.items()}

    def config(self, number: int) -> Config:
        return node_config(self.settings, self.run, number, self._base(number).name)

    def policy(self, number: int) -> Policy:
        """Return a copy of the base policy for node ``number`` to train."""
        base = self._base(number)
        return Policy(deepcopy(base.model), base.tokenizer, base.name)

    def reference(self, number: int) -> PreTrainedModel:
        """Return the model that node ``number`` began with, which no node changes."""
        return self._base(number).model

    @property
    def opening(self) -> str:
        """Return what the right answers of hostile nodes begin with."""
        return TRIGGER if "trigger" in self.run.regime.styles else self.settings.setup.habit

    def rules(self, number: int) -> Rules:
        return SHARES_ALL if self.roles[number].useless else self.run.arm.rules

    def shared(self) -> dict[str, object]:
        """Return by name what is the same in every process and every round."""
        bases = {
            f"{part} {kind}": thing
            for kind, policy in self._bases.items()
            for part, thing in {
                "policy": policy,
                "model": policy.model,
                "tokenizer": policy.tokenizer,
            }.items()
        }
        return {"run": self.run, "verifier": self.verifier, "open_frame": self.open_frame, **bases}

    def _base(self, number: int) -> Policy:
        return self._bases[self.roles[number].base]
