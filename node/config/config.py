"""The node.toml file: reading, overriding, validating and writing it."""

from __future__ import annotations

import errno
import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from node.config.learning import LearnerSection, MixtureSection, PolicySection
from node.config.overrides import Overrides, parse_toml
from node.config.registry import ENGINES, REGISTRIES
from node.config.schema import (
    Section,
    check_addresses,
    check_trusted,
    commented,
    explain,
    host_and_port,
    toml_value,
)
from node.config.sections import (
    EngineSection,
    MonitorSection,
    NetworkSection,
    NodeSection,
    ProfileSection,
    SandboxSection,
    ScheduleSection,
    TasksSection,
)
from node.errors import ConfigError, NodeError
from node.storage.atomic_files import write_atomic
from node.storage.run_folder import RunFolder
from protocol.errors import ProtocolError
from protocol.profile import MAX_LINE, MAX_NAME, check_shown

WIDE_GAPS = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.03, "int8": 0.1}
"""Limits of the train-inference mismatch: mean nats per token of a round, by number format.

Measured with the transformers engine on one core of an AMD EPYC with AVX2 (November 2026): the
largest of several means of 4 to 8 completions of 16 to 24 tokens, and the largest single token of
the check at the start:

=================  ==============  ==============  ==============
largest mean       float32         bfloat16        float16
=================  ==============  ==============  ==============
tiny, tiny-wide    6e-7            0.0084          0.00096
tiny-working       1.2e-6          0.019           0.0030
SmolLM2-135M       7.2e-6          0.055           0.0085
one token          1.9e-5          0.13            0.026
=================  ==============  ==============  ==============

With ``int8`` models of random weights measure up to 0.025 (experiments/reports/engines.md). GPUs
are untested. Log-softmax is in float32 for any format. An output matrix in float32 lowers SmolLM2's
mean of 53 tokens in bfloat16 only from 0.034 to 0.028: most of the difference comes from the
layers.
"""


class Config(Section):
    """The whole node.toml."""

    node: NodeSection = NodeSection()
    network: NetworkSection = NetworkSection()
    profile: ProfileSection = ProfileSection()
    policy: PolicySection = PolicySection()
    engine: EngineSection = EngineSection()
    tasks: TasksSection = TasksSection()
    sandbox: SandboxSection = SandboxSection()
    mixture: MixtureSection = MixtureSection()
    learner: LearnerSection = LearnerSection()
    schedule: ScheduleSection = ScheduleSection()
    monitor: MonitorSection = MonitorSection()

    @classmethod
    def with_overrides(cls, overrides: Overrides) -> Config:
        """Return the defaults with some keys changed, such as ``{"learner.lr": 1e-5}``."""
        return build({}, overrides)

    @property
    def asynchronous(self) -> bool:
        """Whether local groups are generated while the policy learns."""
        if self.schedule.mode == "auto":
            return bool(ENGINES.load(self.engine.backend).beside)
        return self.schedule.mode == "async"

    @property
    def widest_mismatch(self) -> float:
        """Mean nats per token from which engine and learner do not compute the same."""
        quantized = bool(self.engine.backend_options.get("int8"))
        return WIDE_GAPS["int8" if quantized else self.policy.dtype]

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Config:
        _check_kinds(self)
        _check_groups(self)
        _check_schedule(self)
        _check_gpus(self)
        for key in ("listen", "announce_maddrs", "peers"):
            check_addresses(f"network.{key}", getattr(self.network, key))
        check_trusted(self.mixture.trusted)
        _check_profile(self)
        if self.monitor.public:
            host_and_port("monitor.public", self.monitor.public)
        if isinstance(self.monitor.dashboard, str):
            host_and_port("monitor.dashboard", self.monitor.dashboard)
        return self


def load(path: Path, overrides: Overrides | None = None) -> Config:
    """Read ``path``, apply ``overrides`` (dotted key to value) and validate.

    Paths, including a ``policy.model`` beside the file, become absolute. Raises NodeError if it is
    unreadable, and ConfigError if it is not UTF-8 TOML or a key is unknown, wrong or contradictory.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "not a file")
        table = parse_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        remedy = "Write one with: swarm-node init, or name yours with --config."
        raise NodeError(f"cannot read the config ({error.strerror})", path, remedy) from error
    except UnicodeDecodeError as error:
        remedy = "Save the file as UTF-8."
        raise ConfigError(f"{path} (not UTF-8 at byte {error.start})", None, remedy) from error
    except tomllib.TOMLDecodeError as error:
        remedy = "Correct that line; the file must be TOML."
        raise ConfigError(f"{path} ({error})", None, remedy) from error
    return build(table, overrides, base=path.absolute().parent)


def build(
    table: Mapping[str, Any], overrides: Overrides | None = None, *, base: Path | None = None
) -> Config:
    """Build a config as :func:`load` does; ``base`` is the folder of relative paths."""
    values: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for key, value in (overrides or {}).items():
        _put(values, key, value)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise explain(Config, error) from None
    return config if base is None else _with_paths(config, base)


COMMON = (
    *("node.name", "node.seed", "node.threads", "network.listen", "network.peers"),
    *("policy.model", "policy.dtype", "policy.device", "engine.group_size"),
    *("engine.max_new_tokens", "mixture.local", "mixture.external", "learner.lr"),
    *("schedule.checkpoint_every", "monitor.dashboard"),
)
"""Keys that a new node's file has: those that people change most often, and its own seed."""


def write_config(
    path: Path, config: Config, keys: Collection[str] = (), *, full: bool = False
) -> None:
    """Write ``config`` for :func:`load` to read: every key if ``full``, with explanations.

    Otherwise write :data:`COMMON` keys, those in ``keys``, and those without their default.
    """
    write_atomic(path, commented(config, None if full else {*COMMON, *keys}).encode())


def changed(config: Config, keys: Mapping[str, Any]) -> Config:
    """Return ``config`` with some dotted keys changed, or raise ConfigError."""
    return build(config.model_dump(), keys)


def set_keys(path: Path, keys: Mapping[str, Any]) -> None:
    """Write dotted keys into a config file, and leave all else as it is.

    Raises NodeError, and writes nothing, if a key stands there in a way that cannot be replaced.
    """
    original = path.read_text(encoding="utf-8-sig")
    text = original
    wanted: dict[str, Any] = tomllib.loads(original)
    for key, value in keys.items():
        text = _with_key(text, key, value)
        _put(wanted, key, json.loads(json.dumps(value)))
    try:
        actual = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        actual = None
    if actual != wanted:
        lines = ", ".join(f"{key} = {toml_value(value)}" for key, value in keys.items())
        raise NodeError("cannot change the config", path, f"Write these lines yourself: {lines}.")
    write_atomic(path, text.encode())


def _with_key(text: str, key: str, value: Any) -> str:
    """Return a config's text with a key set, in the place that it has or in its section."""
    section, name = key.split(".")
    line = f"{name} = {toml_value(value)}"
    header = re.search(rf"^\[{section}\][^\n]*\n", text, re.MULTILINE)
    if not header:
        return f"{text.rstrip()}\n\n[{section}]\n{line}\n"
    following = re.compile(r"^\[", re.MULTILINE).search(text, header.end())
    end = following.start() if following else len(text)
    assignment = _assignment(name).search(text, header.end(), end)
    if not assignment:
        return f"{text[: header.end()]}{line}\n{text[header.end() :]}"
    return f"{text[: assignment.start()]}{line}{assignment['remark']}{text[assignment.end() :]}"


def _assignment(name: str) -> re.Pattern[str]:
    """Match a key with a value of one line; ``remark`` is what stands behind it."""
    strings = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
    return re.compile(
        rf"^{re.escape(name)}\s*=(?:{strings}|[^\"'#\n])*?(?P<remark>[ \t]*(?:#[^\n]*)?)$",
        re.MULTILINE,
    )


def run_folder(path: Path, config: Config) -> RunFolder:
    """Return the run folder of the config that was read from ``path``."""
    return RunFolder(Path(_absolute(path.absolute().parent, "node.run_dir", config.node.run_dir)))


def run_folder_alone(path: Path) -> RunFolder | None:
    """Return the run folder that ``path`` names, whatever its other keys; None if it has none."""
    try:
        run_dir = parse_toml(path.read_text(encoding="utf-8-sig")).get("node", {}).get("run_dir")
        name = NodeSection().run_dir if run_dir is None else run_dir
        return RunFolder(Path(_absolute(path.absolute().parent, "node.run_dir", name)))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        return None


def _absolute(base: Path, key: str, path: str) -> str:
    try:
        return str((base / Path(path).expanduser()).resolve())
    except (ValueError, RuntimeError) as error:
        raise ConfigError(key, path, f"Write another path; here, {error}.") from error


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested tables without changing the caller's inner tables."""
    *tables, last = key.split(".")
    for name in tables:
        table = values.get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigError(key, value, f"{name} is a single value and has no keys.")
        values[name] = dict(table)
        values = values[name]
    values[last] = value


def _with_paths(config: Config, base: Path) -> Config:
    absolute = partial(_absolute, base)
    files = {name: absolute("tasks.files", file) for name, file in config.tasks.files.items()}
    reads = config.sandbox.read.items()
    read = {name: tuple(absolute("sandbox.read", path) for path in paths) for name, paths in reads}
    model = absolute("policy.model", config.policy.model)
    model = model if Path(model, "config.json").is_file() else config.policy.model
    snapshot = config.monitor.snapshot and absolute("monitor.snapshot", config.monitor.snapshot)
    changes = {
        "tasks": config.tasks.model_copy(update={"files": files}),
        "sandbox": config.sandbox.model_copy(update={"read": read}),
        "policy": config.policy.model_copy(update={"model": model}),
        "monitor": config.monitor.model_copy(update={"snapshot": snapshot}),
    }
    return config.model_copy(update=changes)


def _check_groups(config: Config) -> None:
    mixture = config.mixture
    if mixture.local + mixture.external == 0:
        remedy = "An update has no groups if mixture.external is also 0: increase one of them."
        raise ConfigError("mixture.local", 0, remedy)
    if mixture.pool_groups < mixture.external:
        remedy = f"Set it to at least mixture.external = {mixture.external}."
        raise ConfigError("mixture.pool_groups", mixture.pool_groups, remedy)
    engine = config.engine
    if engine.max_turn_tokens > engine.max_new_tokens:
        remedy = (
            f"All turns together have engine.max_new_tokens = {engine.max_new_tokens}: increase "
            "that or decrease this."
        )
        raise ConfigError("engine.max_turn_tokens", engine.max_turn_tokens, remedy)
    if config.tasks.weights and not any(config.tasks.weights.values()):
        remedy = "Give at least one family a positive weight."
        raise ConfigError("tasks.weights", config.tasks.weights, remedy)


def _check_schedule(config: Config) -> None:
    schedule = config.schedule
    if schedule.oversample > schedule.max_staleness:
        remedy = (
            "Unfinished groups must still be fresh enough for the next update: increase "
            f"schedule.max_staleness to {math.ceil(schedule.oversample)} or decrease this."
        )
        raise ConfigError("schedule.oversample", schedule.oversample, remedy)
    if schedule.oversample and not config.asynchronous:
        remedy = (
            "Only schedule.mode = 'async' starts groups before an update: set that, or set this "
            "to 0."
        )
        raise ConfigError("schedule.oversample", schedule.oversample, remedy)


def _check_kinds(config: Config) -> None:
    for registry in REGISTRIES:
        section, name = registry.key.split(".")
        names = getattr(getattr(config, section), name)
        options = getattr(getattr(config, section), f"{name}_options")
        if isinstance(names, str):
            names, options = (names,), {names: options}
        for kind in names:
            registry.check(kind)
            if options.get(kind) or kind not in registry.builtin:  # plugins may be broken
                registry.options(kind, options.get(kind, {}))
        if unused := sorted(options.keys() - set(names)):
            remedy = f"It is not in {registry.key}: add it there, or remove this table."
            raise ConfigError(f"{registry.key}_options", unused[0], remedy)


def _check_gpus(config: Config) -> None:
    for key in ("tensor_parallel_size", "data_parallel_size"):
        width = getattr(config.engine, key)
        if width > 1 and not ENGINES.load(config.engine.backend).several_gpus:
            backends = [name for name in ENGINES.builtin if ENGINES.load(name).several_gpus]
            remedy = (
                f"Only engine.backend = {' or '.join(map(repr, backends))} uses several GPUs: set "
                "that, or set this to 1."
            )
            raise ConfigError(f"engine.{key}", width, remedy)


def _check_profile(config: Config) -> None:
    for key, limit in (("name", MAX_NAME), ("line", MAX_LINE)):
        value = getattr(config.profile, key)
        try:
            check_shown(value, key, limit)
        except ProtocolError as error:
            _, _, reason = str(error).partition(": ")
            remedy = (
                f"Peers would reject it ({reason}): write up to {limit} visible characters in one "
                "line, with single spaces between them."
            )
            raise ConfigError(f"profile.{key}", value, remedy) from error
