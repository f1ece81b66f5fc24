"""Tasks that an installed package brings along, by entry point, and those of this one.

The package names a factory in the group ``swarm_node.tasks``; called with the list of the levels'
settings it returns the questions, a :class:`Plugin`. Only plain, bounded JSON reaches it; what that
means is for the package to check. A package is opened because this machine's owner installed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from node.errors import CatalogueError
from node.tasks.chain_of_thought_families import FAMILIES
from node.tasks.settings import check_plain
from node.tasks.task import Questions
from protocol.manifest import EnvSpec

GROUP = "swarm_node.tasks"


class Plugin(Questions, Protocol):
    """Questions of a package, and the version that everybody in a swarm must have of them."""

    version: str


def is_here(name: str) -> bool:
    """Whether this package or an installed one brings a task of that name; nothing of it is run."""
    return _brought(name) is not None


def _brought(name: str) -> tuple[Callable[[], Any], str] | None:
    """What loads the factory of that name, and where that is; None when no package brings it."""
    if family := FAMILIES.get(name):
        return (lambda: family), f"{family.__module__}:{family.__name__}"
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    return (entry.load, entry.value) if entry else None


def open_plugin(spec: EnvSpec, levels: Sequence[Mapping[str, Any]]) -> Questions | None:
    """The questions of the family, or else of the entry point, named ``spec.name``.

    None when no package brings it.

    Raises:
        CatalogueError: the package is of another version, fails to load, refuses the settings, or
            does not say whether it evaluates text.
    """
    found = _brought(spec.name)
    if not found:
        return None
    load, where = found
    for number, level in enumerate(levels):
        check_plain(spec.name, number, level)
    try:
        questions: Plugin = load()(list(levels))
        version, _ = questions.version, questions.evaluates_text
    except Exception as error:
        raise CatalogueError(f"env {spec.name!r}: {where} fails: {error}") from error
    if version != spec.version:
        raise CatalogueError(
            f"env {spec.name!r} is of version {spec.version}, installed is {version}: "
            "install the version that the swarm uses"
        )
    return questions
