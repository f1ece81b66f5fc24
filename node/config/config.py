"""The one TOML file that a node is set up with: reading, overriding, checking and writing it.

The keys are in :mod:`node.config.sections` and :mod:`node.config.learning`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from node.config.base import Section
from node.config.kinds import ENGINES, REGISTRIES
from node.config.learning import LearnerSection, PolicySection
from node.config.renamed import present
from node.config.sections import (
    EngineSection,
    MixtureSection,
    MonitorSection,
    NetworkSection,
    NodeSection,
    ScheduleSection,
    TasksSection,
)
from node.config.toml import commented
from node.config.validation_errors import explain
from node.errors import ConfigError, NodeError
from node.storage.atomic_files import write_atomic
from node.storage.run_folder import RunFolder
from protocol.errors import BadKey
from protocol.identity import author_of


class Config(Section):
    """A whole node.toml."""

    node: NodeSection = NodeSection()
    network: NetworkSection = NetworkSection()
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
        mixture = self.mixture
        if mixture.local + mixture.external == 0:
            raise ConfigError(
                "mixture.local",
                0,
                "With mixture.external = 0 as well an update has no groups: raise either.",
            )
        if mixture.pool_groups < mixture.external:
            raise ConfigError(
                "mixture.pool_groups",
                mixture.pool_groups,
                f"Hold at least mixture.external = {mixture.external} groups.",
            )
        if self.tasks.weights and not any(self.tasks.weights.values()):
            raise ConfigError(
                "tasks.weights", self.tasks.weights, "Give at least one family a positive weight."
            )
        if self.schedule.over_provision > self.schedule.max_staleness:
            raise ConfigError(
                "schedule.over_provision",
                self.schedule.over_provision,
                "What an update leaves must be young enough for the next: raise "
                f"schedule.max_staleness to {math.ceil(self.schedule.over_provision)} or lower it.",
            )
        if self.schedule.over_provision and not self.overlaps:
            raise ConfigError(
                "schedule.over_provision",
                self.schedule.over_provision,
                "Groups are begun ahead of an update under schedule.mode = 'overlap' alone: set "
                "that, or leave it at 0.",
            )
        for key in ("tensor_parallel", "data_parallel"):
            width = getattr(self.engine, key)
            if width > 1 and not ENGINES.load(self.engine.kind).several_gpus:
                able = [name for name in ENGINES.own if ENGINES.load(name).several_gpus]
                raise ConfigError(
                    f"engine.{key}",
                    width,
                    f"Only engine.kind = {' or '.join(map(repr, able))} takes several GPUs: set "
                    "that, or leave it at 1.",
                )
        if self.network.relay and not self.network.peers:
            raise ConfigError(
                "network.relay", True, "Name the peers that relay in network.peers or --peers."
            )
        for registry in REGISTRIES:
            section, name = registry.key.split(".")
            chosen = getattr(self, section)
            if options := getattr(chosen, f"{name}_options"):
                registry.options(getattr(chosen, name), options)
        for key in ("listen", "announce", "peers"):
            _check_addresses(f"network.{key}", getattr(self.network, key), key == "peers")
        return self


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read ``path``, apply ``overrides`` (dotted key -> value) and check the whole.

    ``tasks.files``, ``tasks.read`` and a ``policy.model`` that is a folder beside the file become
    absolute.

    Raises:
        NodeError: the file is missing or is not TOML.
        ConfigError: a key is unknown, has a wrong value, or contradicts another.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NodeError(
            f"cannot read the config ({error.strerror})",
            path,
            "Write one with: swarm-node init, or name yours with --config.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), str(error), "Correct that line; the file is TOML.") from error
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
        config = Config.model_validate(present(values))
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
    return config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"files": files, "read": read}),
            "policy": config.policy.model_copy(update={"model": model}),
        }
    )


_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/[^/\s]+/tcp/(\d{1,5})(/[^/\s]+)*")
_HIGHEST_PORT = 65535


def _check_addresses(key: str, addresses: tuple[str, ...], dialled: bool) -> None:
    for address in addresses:
        parsed = _ADDRESS.fullmatch(address)
        if not parsed or int(parsed[2]) > _HIGHEST_PORT:
            raise ConfigError(key, address, "Write a multiaddress such as /ip4/10.0.0.5/tcp/31337.")
        if dialled and not _is_peer(address):
            raise ConfigError(
                key,
                address,
                "End it with /p2p/ and the peer's id; the peer's start message shows it whole.",
            )


def _is_peer(address: str) -> bool:
    _, named, peer = address.rpartition("/p2p/")
    try:
        author_of(peer)
    except BadKey:
        return False
    return bool(named)
