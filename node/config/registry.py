"""Plugins by name: the project's own classes and those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from typing import Any, ClassVar

from pydantic import ValidationError

from node.config.schema import Section, key, wording
from node.errors import ConfigError


@dataclass(frozen=True)
class Registry:
    """The plugins that one config key chooses from.

    A plugin is a class from ``own`` or from an entry point in ``group``. It is imported only when
    it is loaded, so commands can list names without torch.
    """

    key: str  # the config key that chooses a plugin; its settings are in ``key + "_options"``
    base: str  # the class that every plugin extends, as ``"module:name"``
    own: Mapping[str, str]  # the project's own plugins by name, each as ``"module:name"``
    group: str  # the entry-point group in which packages add plugins

    def check(self, name: str) -> str:
        """Return ``name`` if it names exactly one plugin.

        Raises ConfigError if no plugin or two plugins have this name.
        """
        installed = self._installed().get(name)
        if name in self.own and installed:
            raise ConfigError(
                self.key,
                name,
                f"{installed.value} has a name that the project uses: rename it in its package.",
            )
        if name not in self.own and not installed:
            others = sorted({*self.own, *self._installed()})
            remedy = (
                f"There is no such kind: use {' or '.join(map(repr, others))}, or install what "
                f"names it in the entry points {self.group}."
            )
            raise ConfigError(self.key, name, remedy)
        return name

    def load(self, name: str) -> Any:
        """Import and return a plugin's class.

        Raises ConfigError if the name is unknown, the import fails, or the class does not extend
        ``base``.
        """
        if self.check(name) in self.own:
            return _named(self.own[name])
        entry = self._installed()[name]
        try:
            found = entry.load()
        except Exception as error:
            remedy = f"{entry.value} cannot be imported ({error}): mend its package."
            raise ConfigError(self.key, name, remedy) from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            remedy = f"{entry.value} must be a class that extends {self.base.replace(':', '.')}."
            raise ConfigError(self.key, name, remedy)
        return found

    def open(self, name: str, given: Mapping[str, Any], *arguments: Any) -> Any:
        """Construct a plugin from ``arguments`` and its settings (:meth:`options`)."""
        return self.load(name)(*arguments, self.options(name, given))

    def options(self, name: str, given: Mapping[str, Any]) -> Section | None:
        """Validate a plugin's settings against its ``Options``; None if it has none.

        Raises ConfigError if a key is unknown or has a wrong value.
        """
        kind: type[Section] | None = self.load(name).Options
        where = f"{self.key}_options"
        if kind is None:
            if given:
                raise ConfigError(where, dict(given), f"{name!r} has none: leave it empty.")
            return None
        try:
            return kind.model_validate(dict(given))
        except ValidationError as error:
            detail = error.errors()[0]
            what = ".".join([where, *map(str, detail["loc"])])
            remedy = f"{wording(detail)}. {name!r} has {', '.join(kind.model_fields)}."
            raise ConfigError(what, detail["input"], remedy) from None

    def _installed(self) -> dict[str, EntryPoint]:
        entries = _entry_points(tuple(sys.path))
        return {entry.name: entry for entry in entries if entry.group == self.group}

    @cached_property
    def _base(self) -> type:
        base: type = _named(self.base)
        return base


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    del path
    every = (entry for package in distributions() for entry in package.entry_points)
    return tuple(entry for entry in every if entry.group.startswith("swarm_node."))


class Plugin:
    """A plugin, chosen by name; ``Options`` defines its settings, None if none."""

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, options: Any = None) -> None:
        self.options = options


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
    "node.learner.losses:Advantage",
    {"dr_grpo": "node.learner.losses:Centred", "grpo": "node.learner.losses:Standardised"},
    "swarm_node.advantages",
)
CORRECTIONS = Registry(
    "mixture.correction",
    "node.learner.off_policy:Correction",
    {
        "better": "node.learner.off_policy:Better",
        "none": "node.learner.off_policy:Uncorrected",
        "tapered": "node.learner.off_policy:Tapered",
        "tis": "node.learner.off_policy:TruncatedWeights",
    },
    "swarm_node.corrections",
)
SELECTIONS = Registry(
    "mixture.select",
    "swarm.mixture.selection:Selection",
    {
        "auto": "swarm.mixture.selection:AutoSelection",
        "uniform": "swarm.mixture.selection:UniformSelection",
    },
    "swarm_node.selections",
)
CURRICULA = Registry(
    "tasks.curriculum",
    "node.tasks.curriculum:Curriculum",
    {
        "thompson": "node.tasks.curriculum:Thompson",
        "uniform": "node.tasks.curriculum:UniformCurriculum",
    },
    "swarm_node.curricula",
)
ENGINES = Registry(
    "engine.kind",
    "node.engines.kinds:EngineKind",
    {"transformers": "node.engines.kinds:Transformers", "vllm": "node.engines.kinds:Vllm"},
    "swarm_node.engines",
)
TRANSPORTS = Registry(
    "network.transport",
    "node.network.transports:TransportKind",
    {"hivemind": "node.network.transports:Hivemind", "libp2p": "node.network.transports:Libp2p"},
    "swarm_node.transports",
)
LOGGERS = Registry(
    "monitor.loggers",
    "node.monitor.loggers:Logger",
    {
        "tensorboard": "node.monitor.loggers:TensorBoard",
        "trackio": "node.monitor.loggers:Trackio",
        "wandb": "node.monitor.loggers:Wandb",
    },
    "swarm_node.loggers",
)
REGISTRIES = (LOSSES, ADVANTAGES, CORRECTIONS, SELECTIONS, CURRICULA, ENGINES, TRANSPORTS, LOGGERS)


def kind_key(registry: Registry, default: str | tuple[str, ...], about: str) -> Any:
    """Define a key that names a plugin of ``registry``."""
    return key(default, about, choices=tuple(registry.own))


def options_key(chooser: str) -> Any:
    """Define a key for the settings of the plugin that ``chooser`` names."""
    return key({}, f'Settings of the kind that "{chooser}" names, where it has any of its own.')
