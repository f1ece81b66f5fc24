"""Tasks that an installed package brings along, by entry point, and those of this one.

The package names a factory in the group ``swarm_node.tasks``; called with the list of the levels'
settings it returns the questions, a :class:`Plugin`. Only plain, bounded JSON reaches it; what that
means is for the package to check. A package is opened because this machine's owner installed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from node.tasks.errors import CatalogueError
from node.tasks.settings import check_plain
from node.tasks.task import Questions
from node.tasks.working.families import FAMILIES
from protocol.manifest import EnvSpec

GROUP = "swarm_node.tasks"


class Plugin(Questions, Protocol):
    """Questions of a package, and the version that everybody in a swarm must have of them."""

    version: str


def open_plugin(spec: EnvSpec, levels: Sequence[Mapping[str, Any]]) -> Questions | None:
    """The questions of the family, or else of the entry point, named ``spec.name``.

    None when no package brings it.

    Raises:
        CatalogueError: the package is of another version, fails to load, refuses the settings, or
            does not say whether it evaluates text.
    """
    family = FAMILIES.get(spec.name)
    found = () if family else tuple(entry_points(group=GROUP, name=spec.name))
    if not family and not found:
        return None
    for number, level in enumerate(levels):
        check_plain(spec.name, number, level)
    try:
        questions: Plugin = (family or found[0].load())(list(levels))
        version, _ = questions.version, questions.evaluates_text
    except Exception as error:
        where = f": {found[0].value}" if found else ""
        raise CatalogueError(f"env {spec.name!r}{where} fails: {error}") from error
    if version != spec.version:
        raise CatalogueError(
            f"env {spec.name!r} is of version {spec.version}, installed is {version}: "
            "install the version that the swarm uses"
        )
    return questions
