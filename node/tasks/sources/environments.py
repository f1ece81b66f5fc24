"""Environments as the tasks of a catalogue: the first observation is the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from node.environments.environment import Environment, Episode, is_async, run, unfit
from node.environments.games import SHIPPED
from node.environments.own_file import LIBRARIES, environment_of, load_file, replayed
from node.errors import CatalogueError
from node.tasks.sources.jsonl import file_digest
from protocol.manifest import EnvSpec

GROUP = "swarm_node.environments"
"""Of entry points."""


class Environments:
    """One environment at all levels of a catalogue.

    Args:
        environment: its class.
        levels: keyword arguments of its ``reset``, checked.

    Attributes:
        levels: number of levels.
        evaluates_text: what an environment does with a text is its author's to bound; its class is
            opened because this machine's owner put it there.
        replayable: whether others can find what was found here.
        waits: whether it is asynchronous.
    """

    evaluates_text = False

    def __init__(self, environment: type[Environment], levels: Sequence[Mapping[str, Any]]) -> None:
        self._environment = environment
        self._levels = tuple(levels)
        self.waits = is_async(environment)
        self.levels = len(self._levels)
        self.replayable = environment.replayable

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """The first observation of the episode that this number seeds."""
        first = run(self._episode(level, number).begin(), waits=self.waits)
        return {"question": first, "level": level, "number": number}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """The reward of a trajectory of one turn, after which it may have been cut."""
        return self.replay(entry, (answer,), cut=True)

    def replay(self, entry: Mapping[str, Any], turns: Sequence[str], *, cut: bool) -> float:
        """The reward of a trajectory, played once more.

        Raises:
            NotReplayed: the environment answers otherwise.
            EpisodeError: it breaks its word.
        """
        return run(replayed(self.episode(entry), turns, cut=cut), waits=self.waits)

    def episode(self, entry: Mapping[str, Any]) -> Episode:
        """A fresh episode of a task, not yet begun."""
        return self._episode(entry["level"], entry["number"])

    def _episode(self, level: int, number: int) -> Episode:
        return Episode(self._environment, number, self._levels[level])


def open_environment(
    spec: EnvSpec, levels: Sequence[Mapping[str, Any]], file: str | Path | None
) -> Environments | str | None:
    """The environment that ``spec`` names, at its levels; None where nobody brings it.

    Where its library is not installed, what to do about it.

    Args:
        file: of the user's own; its digest is the version then.

    Raises:
        CatalogueError: it is of another version, fails to load, lacks a part, or does not take the
            settings.
    """
    if not file and (remedy := absent(spec.name)):
        return remedy
    try:
        found = load_file(Path(file), spec.name) if file else _brought(spec.name)
    except ImportError as error:
        raise CatalogueError(f"env {spec.name!r}: {error}") from error
    if found is None:
        return None
    version = file_digest(Path(file)) if file else getattr(found, "version", None)
    if version != spec.version:
        raise CatalogueError(
            f"env {spec.name!r} is of version {spec.version}, here is {version}: "
            f"{'get the same file' if file else 'install the version that the swarm uses'}"
        )
    if type(getattr(found, "replayable", None)) is not bool:
        raise CatalogueError(
            f"env {spec.name!r}: {found.__name__} does not say whether it is replayable: "
            "add replayable = True where the same seed and actions always give the same"
        )
    for number, level in enumerate(levels):
        if wrong := unfit(found, level):
            raise CatalogueError(f"env {spec.name!r} level {number}: {wrong}")
    return Environments(found, levels)


def absent(name: str) -> str | None:
    """What to do for an environment of another library, where that is not installed."""
    library = LIBRARIES.get(name)
    if library is None or library.is_here():
        return None
    return f"env {name!r} is not served here: {library.remedy}"


def is_here(name: str) -> bool:
    """Whether this package or an installed one brings an environment; nothing of it is run."""
    if library := LIBRARIES.get(name):
        return library.is_here()
    return name in SHIPPED or bool(entry_points(group=GROUP, name=name))


def _brought(name: str) -> type[Environment] | None:
    """The class of that name that this package or an installed one brings."""
    if shipped := SHIPPED.get(name):
        return shipped
    if library := LIBRARIES.get(name):
        return library.load()
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry is None:
        return None
    try:
        found = environment_of(entry.load())
    except Exception as error:
        raise ImportError(f"{entry.value} fails: {error}") from error
    return found
