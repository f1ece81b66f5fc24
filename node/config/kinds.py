"""Every registry of the project: which parts have kinds, and how a package adds one."""

from __future__ import annotations

from typing import Any

from node.config.base import key
from node.config.registry import Registry

LOSSES = Registry(
    "learner.loss",
    "node.learner.losses:Loss",
    {
        "cispo": "node.learner.losses:Cispo",
        "dr_grpo": "node.learner.losses:DrGrpo",
        "grpo": "node.learner.losses:Grpo",
        "gspo": "node.learner.losses:Gspo",
    },
    "swarm_node.losses",
)
ADVANTAGES = Registry(
    "learner.advantage",
    "node.learner.advantages:Advantage",
    {
        "dr_grpo": "node.learner.advantages:Centred",
        "grpo": "node.learner.advantages:Standardised",
    },
    "swarm_node.advantages",
)
CORRECTIONS = Registry(
    "mixture.correction",
    "node.learner.off_policy:Correction",
    {
        "better": "node.learner.off_policy:Better",
        "none": "node.learner.off_policy:Uncorrected",
        "tapered": "node.learner.off_policy:Tapered",
        "tis": "node.learner.off_policy:Truncated",
    },
    "swarm_node.corrections",
)
SELECTIONS = Registry(
    "mixture.select",
    "swarm.mixture.selection:Selection",
    {
        "auto": "swarm.mixture.selections.auto:Auto",
        "uniform": "swarm.mixture.selections.uniform:Uniform",
    },
    "swarm_node.selections",
)
CURRICULA = Registry(
    "tasks.curriculum",
    "node.tasks.curriculum:Curriculum",
    {
        "thompson": "node.tasks.curriculum:Thompson",
        "uniform": "node.tasks.curriculum:Uniform",
    },
    "swarm_node.curricula",
)
ENGINES = Registry(
    "engine.kind",
    "node.engines.registry:EngineKind",
    {
        "transformers": "node.engines.registry:Transformers",
        "vllm": "node.engines.registry:Vllm",
    },
    "swarm_node.engines",
)
TRANSPORTS = Registry(
    "network.transport",
    "node.network.transport_kind:TransportKind",
    {
        "hivemind": "node.network.transports.hivemind:Hivemind",
        "libp2p": "node.network.transports.libp2p:Libp2p",
    },
    "swarm_node.transports",
)
LOGGERS = Registry(
    "monitor.loggers",
    "node.monitor.logger:Logger",
    {
        "tensorboard": "node.monitor.loggers.tensorboard:TensorBoard",
        "trackio": "node.monitor.loggers.trackio:Trackio",
        "wandb": "node.monitor.loggers.wandb:Wandb",
    },
    "swarm_node.loggers",
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
    return key(default, about, choices=tuple(registry.own))


def options_key(chooser: str) -> Any:
    """A key for the settings of the kind that ``chooser`` names, where it has its own."""
    return key({}, f'Settings of the kind that "{chooser}" names, where it has any of its own.')
