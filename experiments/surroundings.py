"""What the nodes of one simulated swarm share: clock, wires, manifest, judge and base policies."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache

from experiments.bases import Base
from experiments.recipe.local_judge import LocalJudge
from experiments.settings import START, Configuration, Settings, node_config, signed_manifest
from node.config.config import Config
from node.config.learning import PolicySection
from node.policy.policy import Policy
from node.run.update_groups import Rules
from protocol.frame import open_frame
from protocol.manifest import Manifest, open_manifest
from swarm.common.clock import VirtualClock
from swarm.transport.memory import MemoryNetwork

SHARES_ALL = Rules(fill=False, discard=False)
REMEMBERED_FRAMES = 256
"""Opened once for all nodes: those of some rounds."""


class Surroundings:
    """What the nodes of one swarm share.

    Args:
        run: which arm, seed and regime.
        models: the base policies that the regime needs, folders or shipped models' names.
    """

    def __init__(self, settings: Settings, run: Configuration, models: Mapping[Base, str]) -> None:
        self.settings = settings
        self.run = run
        self.roles = run.roles(settings)
        self.clock = VirtualClock(START)
        self.network = MemoryNetwork(self.clock, run.seed)
        self.signed = signed_manifest(settings, run)
        self.manifest: Manifest = open_manifest(self.signed)
        self.judge = LocalJudge(self.manifest.catalogue)
        self.open_frame = lru_cache(REMEMBERED_FRAMES)(open_frame)
        self._bases = {
            kind: Policy.load(PolicySection(model=model, device="cpu"))
            for kind, model in models.items()
        }

    def config(self, number: int) -> Config:
        """Of node ``number``."""
        return node_config(self.settings, self.run, number, self._base(number).name)

    def policy(self, number: int) -> Policy:
        """The base policy of node ``number``, to be trained by it alone."""
        base = self._base(number)
        return Policy(deepcopy(base.model), base.tokenizer, base.name)

    def rules(self, number: int) -> Rules:
        """What node ``number`` does around its mixture."""
        return SHARES_ALL if self.roles[number].useless else self.run.arm.rules

    def _base(self, number: int) -> Policy:
        return self._bases[self.roles[number].base]
