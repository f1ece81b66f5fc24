"""Plugins by name: the project's own classes and those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions
from pkgutil import resolve_name
from typing import Any, ClassVar

from pydantic import ValidationError

from node.config.schema import Section, key, wording
from node.errors import ConfigError


@dataclass(frozen=True)
class Registry:
    """Plugins for one config key, from ``builtin`` or entry points in ``group``.

    One is imported when it is loaded, so commands can list names without torch.
    """

    key: str  # the config key that chooses a plugin; its settings are in ``key + "_options"``
    base: str  # the class that every plugin extends, as ``"module:name"``
    builtin: Mapping[str, str]  # the project's own plugins by name, each as ``"module:name"``
    group: str  # the entry-point group in which packages add plugins

    def check(self, name: str) -> str:
        """Return ``name`` if it names exactly one plugin, or raise ConfigError."""
        installed = self._installed().get(name)
        if name in self.builtin and installed:
            value = installed.value
            remedy = f"{value} has a name that this project uses: rename it in its package."
            raise ConfigError(self.key, name, remedy)
        if name not in self.builtin and not installed:
            names = sorted({*self.builtin, *self._installed()})
            remedy = (
                f"There is no such plugin: use {' or '.join(map(repr, names))}, or install a "
                f"package that adds it to the entry points {self.group}."
            )
            raise ConfigError(self.key, name, remedy)
        return name

    def load(self, name: str) -> Any:
        """Import and return a plugin's class; raise ConfigError if it is not a ``base``."""
        if self.check(name) in self.builtin:
            return resolve_name(self.builtin[name])
        entry = self._installed()[name]
        try:
            plugin = entry.load()
        except Exception as error:  # a package's code may raise anything while it is imported
            remedy = f"{entry.value} cannot be imported ({error}): repair its package."
            raise ConfigError(self.key, name, remedy) from error
        if not (isinstance(plugin, type) and issubclass(plugin, resolve_name(self.base))):
            remedy = f"{entry.value} must be a class that extends {self.base.replace(':', '.')}."
            raise ConfigError(self.key, name, remedy)
        return plugin

    def open(self, name: str, given: Mapping[str, Any], *arguments: Any) -> Any:
        """Construct a plugin from ``arguments`` and its settings (:meth:`options`)."""
        return self.load(name)(*arguments, self.options(name, given))

    def options(self, name: str, given: Mapping[str, Any]) -> Section | None:
        """Validate a plugin's settings, None without ``Options``, or raise ConfigError."""
        schema: type[Section] | None = self.load(name).Options
        table = f"{self.key}_options"
        if schema is None:
            if given:
                raise ConfigError(table, dict(given), f"{name!r} has no options: leave it empty.")
            return None
        try:
            return schema.model_validate(dict(given))
        except ValidationError as error:
            detail = error.errors()[0]
            location = ".".join([table, *map(str, detail["loc"])])
            remedy = (
                f"{wording(detail)}. The options of {name!r} are {', '.join(schema.model_fields)}."
            )
            raise ConfigError(location, detail["input"], remedy) from None

    def _installed(self) -> dict[str, EntryPoint]:
        entries = _entry_points(tuple(sys.path))
        return {entry.name: entry for entry in entries if entry.group == self.group}


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    del path
    entries = (entry for package in distributions() for entry in package.entry_points)
    return tuple(entry for entry in entries if entry.group.startswith("swarm_node."))


def _registry(key: str, group: str, base: str, builtin: Mapping[str, str]) -> Registry:
    """Make a registry; its own plugins are classes in the module of ``base``."""
    module, _, _ = base.partition(":")
    classes = {name: f"{module}:{kind}" for name, kind in builtin.items()}
    return Registry(key, base, classes, f"swarm_node.{group}")


class Plugin:
    """A plugin, chosen by name; ``Options`` defines its settings, None if none."""

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, options: Any = None) -> None:
        self.options = options


LOSSES = _registry(
    "learner.loss",
    "losses",
    "node.learner.losses:Loss",
    {"cispo": "Cispo", "dr_grpo": "DrGrpo", "grpo": "Grpo", "gspo": "Gspo"},
)
ADVANTAGES = _registry(
    "learner.advantage",
    "advantages",
    "node.learner.losses:Advantage",
    {"dr_grpo": "Centred", "grpo": "Standardised"},
)
CORRECTIONS = _registry(
    "mixture.correction",
    "corrections",
    "node.learner.off_policy:Correction",
    {"better": "Better", "none": "Uncorrected", "tapered": "Tapered", "tis": "TruncatedWeights"},
)
SELECTIONS = _registry(
    "mixture.select",
    "selections",
    "swarm.mixture:Selection",
    {"auto": "AutoSelection", "uniform": "UniformSelection"},
)
CURRICULA = _registry(
    "tasks.curriculum",
    "curricula",
    "node.tasks.curriculum:Curriculum",
    {
        "auto": "AutoCurriculum",
        "skill": "Skill",
        "thompson": "Thompson",
        "uniform": "UniformCurriculum",
    },
)
ENGINES = _registry(
    "engine.backend",
    "engines",
    "node.engines.kinds:EngineKind",
    {"transformers": "Transformers", "vllm": "Vllm"},
)
TRANSPORTS = _registry(
    "network.transport",
    "transports",
    "node.network.transports:TransportKind",
    {"hivemind": "Hivemind", "libp2p": "Libp2p"},
)
LOGGERS = _registry(
    "monitor.loggers",
    "loggers",
    "node.monitor.loggers:Logger",
    {"tensorboard": "TensorBoard", "trackio": "Trackio", "wandb": "Wandb"},
)
REGISTRIES = (LOSSES, ADVANTAGES, CORRECTIONS, SELECTIONS, CURRICULA, ENGINES, TRANSPORTS, LOGGERS)


def kind_key(registry: Registry, default: str | tuple[str, ...], about: str) -> Any:
    return key(default, about, choices=tuple(registry.builtin))


def options_key(chooser: str) -> Any:
    """Define a key for the settings of the plugin that ``chooser`` names."""
    return key({}, f'Options of the plugin that "{chooser}" names, if it has any.')
