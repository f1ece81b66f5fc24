"""The one TOML file that a node is set up with: reading, overriding, checking and writing it.

The keys are in :mod:`node.config.sections` and :mod:`node.config.learning`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from node.config import contradictions
from node.config.base import Section
from node.config.kinds import ENGINES
from node.config.learning import LearnerSection, PolicySection
from node.config.mixing import MixtureSection
from node.config.running import MonitorSection, ScheduleSection
from node.config.sections import (
    EngineSection,
    NetworkSection,
    NodeSection,
    ProfileSection,
    TasksSection,
)
from node.config.toml import commented
from node.config.validation_errors import explain
from node.errors import ConfigError, NodeError
from node.storage.atomic_files import write_atomic
from node.storage.run_folder import RunFolder


class Config(Section):
    """A whole node.toml."""

    node: NodeSection = NodeSection()
    network: NetworkSection = NetworkSection()
    profile: ProfileSection = ProfileSection()
    policy: PolicySection = PolicySection()
    engine: EngineSection = EngineSection()
    tasks: TasksSection = TasksSection()
    mixture: MixtureSection = MixtureSection()
    learner: LearnerSection = LearnerSection()
    schedule: ScheduleSection = ScheduleSection()
    monitor: MonitorSection = MonitorSection()

    @classmethod
    def with_overrides(cls, overrides: Mapping[str, Any]) -> Config:
        """The defaults with some keys changed, as ``{"learner.lr": 1e-5}``.

        Raises:
            ConfigError: as in :func:`load`.
        """
        return build({}, overrides)

    @property
    def overlaps(self) -> bool:
        """Whether own groups are written while the policy learns."""
        if self.schedule.mode == "auto":
            return bool(ENGINES.load(self.engine.kind).beside)
        return self.schedule.mode == "overlap"

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Config:
        contradictions.refuse(self)
        return self


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read ``path``, apply ``overrides`` (dotted key -> value) and check the whole.

    ``tasks.files``, ``tasks.read``, ``monitor.snapshot`` and a ``policy.model`` that is a folder
    beside the file become absolute.

    Raises:
        NodeError: the file is missing or is not TOML.
        ConfigError: a key is unknown, has a wrong value, or contradicts another.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise NodeError(
            f"cannot read the config ({error.strerror})",
            path,
            "Write one with: swarm-node init, or name yours with --config.",
        ) from error
    except UnicodeDecodeError as error:
        remedy = "Save it as UTF-8; the file is TOML."
        raise ConfigError(f"{path} (no UTF-8 at byte {error.start})", None, remedy) from error
    except tomllib.TOMLDecodeError as error:
        remedy = "Correct that line; the file is TOML."
        raise ConfigError(f"{path} ({error})", None, remedy) from error
    return build(table, overrides, base=path.absolute().parent)


def build(
    table: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
) -> Config:
    """A config from plain values; relative paths are resolved against ``base``.

    Raises:
        ConfigError: as in :func:`load`.
    """
    values: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for key, value in (overrides or {}).items():
        _put(values, key, value)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise explain(Config, error) from None
    return config if base is None else _with_paths(config, base)


def write_config(path: Path, config: Config) -> None:
    """Write ``config`` to ``path`` with every key explained; :func:`load` gives it back."""
    write_atomic(path, commented(config, "A swarm-node's configuration.").encode())


def run_folder(path: Path, config: Config) -> RunFolder:
    """The run folder of the config read from ``path``."""
    root = path.absolute().parent / Path(config.node.run_dir).expanduser()
    return RunFolder(root.resolve())


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested tables, leaving the caller's inner tables alone."""
    *tables, last = key.split(".")
    for name in tables:
        inner = values.get(name, {})
        if not isinstance(inner, Mapping):
            raise ConfigError(key, value, f"{name} is a single value and has no keys.")
        values[name] = dict(inner)
        values = values[name]
    values[last] = value


def _with_paths(config: Config, base: Path) -> Config:
    def absolute(path: str) -> str:
        return str((base / Path(path).expanduser()).resolve())

    files = {name: absolute(file) for name, file in config.tasks.files.items()}
    read = {name: tuple(map(absolute, paths)) for name, paths in config.tasks.read.items()}
    model = config.policy.model
    folder = base / Path(model).expanduser()
    if (folder / "config.json").is_file():
        model = str(folder.resolve())
    snapshot = config.monitor.snapshot and absolute(config.monitor.snapshot)
    return config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"files": files, "read": read}),
            "policy": config.policy.model_copy(update={"model": model}),
            "monitor": config.monitor.model_copy(update={"snapshot": snapshot}),
        }
    )
