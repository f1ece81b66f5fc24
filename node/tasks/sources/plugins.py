"""Tasks of installed packages, by entry point, and of this package.

A package registers a factory in the group ``swarm_node.tasks``, which takes the list of level
settings (only plain, bounded JSON) and returns a :class:`TaskPlugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from node.environments.environment import raised
from node.errors import TaskSetError
from node.tasks.chain_of_thought import FAMILIES as CHAINS
from node.tasks.settings import check_plain
from node.tasks.starter_families import FAMILIES as STARTER
from node.tasks.task import Questions
from protocol.manifest import EnvSpec

GROUP = "swarm_node.tasks"
FAMILIES: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], Any]] = {**CHAINS, **STARTER}
"""Those of this package."""


class TaskPlugin(Questions, Protocol):
    """Questions of a package, in a version that all peers share."""

    version: str


def is_here(name: str) -> bool:
    """Return whether a task is installed, without running its code."""
    return _brought(name) is not None


def _brought(name: str) -> tuple[Callable[[], Any], str] | None:
    if family := FAMILIES.get(name):
        return (lambda: family), f"{family.__module__}:{family.__name__}"
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    return (entry.load, entry.value) if entry else None


def open_plugin(spec: EnvSpec, levels: Sequence[Mapping[str, Any]]) -> Questions:
    """Open a task that :func:`is_here`; raise ``TaskSetError`` if unfit."""
    entry = _brought(spec.name)
    assert entry
    load, origin = entry
    for number, level in enumerate(levels):
        check_plain(spec.name, number, level)
    try:
        questions: TaskPlugin = load()(list(levels))
        version, count, _ = questions.version, questions.levels, questions.evaluates_text
    except (Exception, SystemExit) as error:  # a package's code may raise anything
        raise TaskSetError(f"env {spec.name!r}: {origin} fails: {raised(error)}") from error
    if version != spec.version:
        versions = f"version {spec.version!r}, installed is {version!r}"
        remedy = "install that of the swarm" if isinstance(version, str) else "write it as a text"
        raise TaskSetError(f"env {spec.name!r} is of {versions}: {remedy}")
    if count != len(levels):
        remedy = "set it to the number of settings that it is given"
        raise TaskSetError(
            f"env {spec.name!r}: {origin} has levels = {count!r}, not {len(levels)}: {remedy}"
        )
    return questions
