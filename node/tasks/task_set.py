"""Task sets: a swarm's envs, read from TOML and opened as task sources.

Keys before the first ``[[env]]`` are defaults for every env in the file::

    source = "reasoning-gym"            # or "jsonl", "plugin", "environment"
    version = "0.1.25"                  # of reasoning-gym, or of the plugin
    template = "{question}="            # prompt
    extract = "text"                    # or "answer_tag", "boxed": where to look for it first

    [[env]]
    name = "gcd"                        # reasoning-gym family, or the plugin's entry point
    levels = [{ max_value = 12 }, { max_value = 24 }]   # one table of settings per level

    [[env]]
    name = "sums"
    source = "jsonl"
    file = "sums.jsonl"                 # relative to the TOML; its digest becomes the version
    levels = [{ match = "numeric" }]

    [[env]]
    name = "treasure"
    source = "environment"              # shipped, from a package, or from a file as here
    file = "treasure.py"
    levels = [{ rooms = 5 }]            # arguments of its reset

Peers rebuild tasks from these values alone, so the manifest carries them; it carries no files.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.config.overrides import parse_toml
from node.environments.games import SHIPPED
from node.environments.own_file import LIBRARIES
from node.errors import TaskSetError
from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.sources import environments, plugins
from node.tasks.sources.reasoning_gym import EVALUATING, UNREPEATABLE
from node.tasks.task import Questions, TaskSource
from protocol.manifest import ENVIRONMENT, EnvSpec, canonical_json
from swarm.common.util import counted

if TYPE_CHECKING:  # Workers import this module, and need no pydantic.
    from node.config.sections import SandboxSection, TasksSection

NO_FILE = "env '{name}' is not available here: set tasks.files.{name} to its file"
NO_PACKAGE = "env '{name}' is not available here: install its package"
EVALUATES = (
    "env '{name}' evaluates the text of completions and is not opened: name it in "
    "tasks.allow_code_execution if you trust the authors of the completions"
)
UNREPEATED = (
    "env '{name}' is not opened: its questions differ between processes, so no peer could "
    "verify a reward; remove it from the task set"
)
UNSANDBOXED = (
    "env '{name}' evaluates the text of completions, and this machine has no sandbox for that: "
    "install bubblewrap and libseccomp, or allow user namespaces"
)

NAMED = 5  # maximum number of envs that a summary names

_DIGEST = re.compile("[0-9a-f]{64}")  # Version of an env in a file.
_KEYS = {"name", "source", "version", "levels", "template", "extract"}
_SHIPPED = resources.files("node.tasks") / "task_sets"


def load_task_set(name_or_path: str) -> tuple[EnvSpec, ...]:
    """Load a shipped task set or a TOML file; raise ``TaskSetError`` if invalid."""
    if name_or_path.endswith(".toml"):
        text, folder = _read(Path(name_or_path)), Path(name_or_path).parent
    else:
        shipped = _SHIPPED / f"{name_or_path}.toml"
        if not shipped.is_file():
            names = ", ".join(sorted(f.name.removesuffix(".toml") for f in _SHIPPED.iterdir()))
            remedy = (
                f"name one of {names}, or a path ending in .toml, which may name your own files"
            )
            raise TaskSetError(f"no task set {name_or_path!r}: {remedy}")
        text, folder = shipped.read_text(encoding="utf-8"), Path()
    try:
        document = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskSetError(f"task set {name_or_path!r} is not TOML: {error}") from error
    envs = document.pop("env", [])
    if not isinstance(envs, list) or not envs or not all(isinstance(env, dict) for env in envs):
        raise TaskSetError(f"task set {name_or_path!r} has no env: add at least one [[env]] table")
    specs = tuple(_spec({**document, **env}, name_or_path, folder) for env in envs)
    if len({spec.name for spec in specs}) < len(specs):
        remedy = "each name once, with levels"
        raise TaskSetError(f"task set {name_or_path!r} names an env twice: {remedy}")
    return specs


def own_files(name_or_path: str) -> dict[str, Path]:
    """Return each env's file in a TOML task set that :func:`load_task_set` has read."""
    if not name_or_path.endswith(".toml"):
        return {}
    document = parse_toml(_read(Path(name_or_path)))
    tables = [{**document, **env} for env in document.pop("env")]
    folder = Path(name_or_path).parent
    return {table["name"]: folder / table["file"] for table in tables if "file" in table}


@dataclass(frozen=True, slots=True)
class Allowed:
    """Permissions of task sets on this machine, by env name.

    ``code_execution`` envs may open although they evaluate answers. ``read`` has more paths that a
    task may read. ``sandboxed``: the machine can sandbox evaluation.
    """

    files: Mapping[str, str | Path] = field(default_factory=dict)
    code_execution: Collection[str] = ()
    read: Mapping[str, Collection[str]] = field(default_factory=dict)
    network: Collection[str] = ()
    sandboxed: bool = True

    def message(self) -> dict[str, Any]:
        """Encode for a worker; paths are absolute because its directory differs."""
        files = {name: str(Path(path).absolute()) for name, path in self.files.items()}
        code = list(self.code_execution)
        return {"files": files, "code_execution": code, "sandboxed": self.sandboxed}

    def why_not_evaluated(self, name: str) -> str | None:
        """Return why an env may not evaluate text here; None if it may."""
        if name not in self.code_execution:
            return EVALUATES.format(name=name)
        return None if self.sandboxed else UNSANDBOXED.format(name=name)


def open_envs(
    specs: Sequence[EnvSpec], allowed: Allowed
) -> tuple[dict[str, TaskSource], dict[str, str]]:
    """Open every env that this machine can and may serve; return why others are closed.

    An env is closed if its file or plugin is missing, or if it evaluates text without permission.
    The node neither trains on it nor accepts groups of it. Raises TaskSetError: an env has
    another version or impossible settings.
    """
    sources: dict[str, TaskSource] = {}
    closed: dict[str, str] = {}
    for spec in specs:
        if reason := why_closed(spec, allowed):
            closed[spec.name] = reason
            continue
        questions = _questions(spec, allowed.files.get(spec.name))
        # A package says only once it is open whether it evaluates text.
        evaluating = spec.source == "plugin" and questions.evaluates_text
        if evaluating and (reason := allowed.why_not_evaluated(spec.name)):
            closed[spec.name] = reason
            continue
        sources[spec.name] = TaskSource(spec.name, spec.template, spec.extract, questions)
    return sources, closed


def why_closed(spec: EnvSpec, allowed: Allowed) -> str | None:
    """Return why an env cannot be opened here, as far as this is known without opening it."""
    name, has_file = spec.name, spec.name in allowed.files
    if in_file(spec):
        return None if has_file else NO_FILE.format(name=name)
    if spec.source == ENVIRONMENT and not has_file and not environments.is_here(name):
        return environments.absent(name) or NO_PACKAGE.format(name=name)
    if spec.source == "plugin" and not plugins.is_here(name):
        return NO_PACKAGE.format(name=name)
    if spec.source == "reasoning-gym" and name in UNREPEATABLE:
        return UNREPEATED.format(name=name)
    return allowed.why_not_evaluated(name) if evaluates(spec) else None


def level_settings(spec: EnvSpec) -> list[dict[str, Any]]:
    """Decode the settings of each level, or raise ``TaskSetError``."""
    try:
        levels = [json.loads(level) for level in spec.levels]
    except (ValueError, RecursionError) as error:
        raise TaskSetError(f"env {spec.name!r}: a level is not JSON: {error}") from error
    if not all(isinstance(level, dict) for level in levels):
        raise TaskSetError(f"env {spec.name!r}: every level is a table of settings")
    return levels


def _questions(spec: EnvSpec, file: str | Path | None) -> Questions:
    """Open an env for which :func:`why_closed` knows no reason; ``file`` is the user's own."""
    levels = level_settings(spec)
    # Import a source only if named: reasoning-gym alone costs half a second and 70 MB.
    if spec.source == "jsonl":
        from node.tasks.sources.jsonl import JsonLines

        assert file is not None
        return JsonLines.open(spec, levels, Path(file))
    if spec.source == "reasoning-gym":
        from node.tasks.sources.reasoning_gym import ReasoningGym

        return ReasoningGym.open(spec, levels)
    if spec.source == ENVIRONMENT:
        return environments.open_environment(spec, levels, file)
    return plugins.open_plugin(spec, levels)


def in_file(spec: EnvSpec) -> bool:
    """Return whether an env is defined by a file that each node must have."""
    from_file = spec.source == ENVIRONMENT and _DIGEST.fullmatch(spec.version) is not None
    return spec.source == "jsonl" or from_file


def evaluates(spec: EnvSpec) -> bool:
    """Return whether a known family evaluates answer text; packages declare it."""
    return spec.source == "reasoning-gym" and spec.name in EVALUATING


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or error
        raise TaskSetError(f"task set {str(path)!r} cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise TaskSetError(f"task set {str(path)!r} cannot be read: not UTF-8") from error


def _spec(table: dict[str, Any], origin: str, folder: Path) -> EnvSpec:
    name = table.get("name")
    if not isinstance(name, str):
        raise TaskSetError(f"task set {origin!r}: every [[env]] needs a name")
    if file := table.pop("file", None):
        from node.tasks.sources.jsonl import file_digest

        if not isinstance(file, str):
            raise TaskSetError(f"env {name!r} in {origin!r}: file is a path, not {file!r}")
        table["version"] = file_digest(folder / file)
    missing = _KEYS - table.keys()
    if table.get("source") == "jsonl" and "version" in missing:  # the hash of its file
        missing = missing - {"version"} | {"file"}
    if missing:
        raise TaskSetError(f"env {name!r} in {origin!r} lacks {', '.join(sorted(missing))}")
    if unknown := table.keys() - _KEYS:
        keys = ", ".join(sorted(_KEYS | {"file"}))
        problem = f"unknown {', '.join(sorted(unknown))}; keys are {keys}"
        raise TaskSetError(f"env {name!r} in {origin!r} has {problem}")
    levels = table["levels"]
    if not isinstance(levels, list) or not all(isinstance(level, dict) for level in levels):
        raise TaskSetError(f"env {name!r} in {origin!r}: levels is a list of tables of settings")
    try:
        return EnvSpec(**{**table, "levels": tuple(map(canonical_json, levels))})
    except TypeError as error:
        reason = "a setting is a date or time, which no manifest holds"
        raise TaskSetError(f"env {name!r} in {origin!r}: {reason}") from error
    except ValueError as error:
        raise TaskSetError(f"env {name!r} in {origin!r}: {error}") from error


def overview(specs: Sequence[EnvSpec], allowed: Allowed) -> list[str]:
    """Return one line for all open envs, then one for each closed env.

    Names from a manifest are safe to print: they hold only letters, digits and ``_ . -``.
    """
    closed = {spec.name: reason for spec in specs if (reason := why_closed(spec, allowed))}
    entries = [_entry(spec) for spec in specs if spec.name not in closed]
    return [f"this swarm's tasks here: {', '.join(entries) or 'none'}", *closed.values()]


def misnamed(specs: Sequence[EnvSpec], allowed: Allowed) -> list[str]:
    """Return a line for each name of the user's tables that is not a family of these."""
    names = {spec.name for spec in specs}
    tables: dict[str, Collection[str]] = {
        "tasks.files": allowed.files,
        "tasks.allow_code_execution": allowed.code_execution,
        "sandbox.read": allowed.read,
        "sandbox.network": allowed.network,
    }
    pairs = [(key, name) for key, table in tables.items() for name in table if name not in names]
    return [f"{key} names {name!r}: correct it, no family has it" for key, name in pairs]


def summary(specs: Sequence[EnvSpec], allowed: Allowed) -> str:
    """Return the first line of :func:`overview`; it counts many envs but names risky ones."""
    usable = [spec for spec in specs if not why_closed(spec, allowed)]
    if len(usable) <= NAMED:
        return overview(specs, allowed)[0]
    levels = counted(sum(len(spec.levels) for spec in usable), "level")
    shipped = (file.name.removesuffix(".toml") for file in _SHIPPED.iterdir())
    name = next((stem for stem in shipped if load_task_set(stem) == tuple(specs)), None)
    source = f"the task set {name}" if name else ", ".join(dict.fromkeys(map(_provider, usable)))
    risky = ", ".join(spec.name for spec in usable if evaluates(spec))
    suffix = f"; {risky}: evaluates answers" if risky else ""
    return f"this swarm's tasks here: {len(usable)} families with {levels}, of {source}{suffix}"


def _entry(spec: EnvSpec) -> str:
    levels = counted(len(spec.levels), "level")
    evaluating = ", evaluates answers" if evaluates(spec) else ""
    return f"{spec.name} ({levels} of {_provider(spec)}{evaluating})"


def _provider(spec: EnvSpec) -> str:
    if in_file(spec):
        return "your file"
    if spec.source not in ("plugin", ENVIRONMENT):
        return spec.source
    if spec.source == ENVIRONMENT and spec.name in LIBRARIES:
        return spec.name
    is_shipped = spec.name in plugins.FAMILIES or spec.name in SHIPPED
    return "swarm-node" if is_shipped else "your package"


def allowed_by(tasks: TasksSection, sandbox: SandboxSection) -> Allowed:
    """Return what the user's ``[tasks]`` and ``[sandbox]`` tables allow on this machine."""
    sandboxed = sandbox_support().whole
    code = tasks.allow_code_execution
    return Allowed(tasks.files, code, sandbox.read, sandbox.network, sandboxed)
