"""Every registry of the project: which parts have kinds, and how a package adds one."""

from __future__ import annotations

from typing import Any

from node.config.base import key
from node.config.registry import Registry

LOSSES = Registry(
    "learner.loss", "node.learner.loss:Loss", "node.learner.losses", "swarm_node.losses"
)
ADVANTAGES = Registry(
    "learner.advantage",
    "node.learner.advantage:Advantage",
    "node.learner.advantages",
    "swarm_node.advantages",
)
CORRECTIONS = Registry(
    "mixture.correction",
    "node.learner.correction:Correction",
    "node.learner.corrections",
    "swarm_node.corrections",
)
SELECTIONS = Registry(
    "mixture.select",
    "swarm.mixture.selection:Selection",
    "swarm.mixture.selections",
    "swarm_node.selections",
)
CURRICULA = Registry(
    "tasks.curriculum",
    "node.tasks.curriculum:Curriculum",
    "node.tasks.curricula",
    "swarm_node.curricula",
)
ENGINES = Registry(
    "engine.kind", "node.engines.kind:EngineKind", "node.engines.kinds", "swarm_node.engines"
)
TRANSPORTS = Registry(
    "network.transport",
    "node.network.transport_kind:TransportKind",
    "node.network.transports",
    "swarm_node.transports",
)
LOGGERS = Registry(
    "monitor.loggers", "node.monitor.logger:Logger", "node.monitor.loggers", "swarm_node.loggers"
)
REGISTRIES = (
    LOSSES,
    ADVANTAGES,
    CORRECTIONS,
    SELECTIONS,
    CURRICULA,
    ENGINES,
    TRANSPORTS,
    LOGGERS,
)


def kind_key(registry: Registry, default: str | tuple[str, ...], about: str) -> Any:
    """A key that names a kind; its values are those of the project and of installed packages."""
    return key(default, about, choices=registry.own)


def options_key(chooser: str) -> Any:
    """A key for the settings of the kind that ``chooser`` names, where it has its own."""
    return key({}, f'Settings of the kind that "{chooser}" names, where it has any of its own.')
