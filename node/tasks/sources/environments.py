"""Environments as tasks: the first observation is the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from node.environments.environment import Environment, Episode, is_async, raised, run, unfit
from node.environments.games import SHIPPED
from node.environments.own_file import LIBRARIES, environment_of, load_file, replayed
from node.errors import TaskSetError
from node.tasks.answers import read_turn
from node.tasks.sources.jsonl import CHANGED, file_digest
from protocol.manifest import EnvSpec, Extract

GROUP = "swarm_node.environments"  # Entry point group.


class Environments:
    """One environment at all levels of a task set, whose settings are checked.

    Its author bounds what it does with text: hence ``evaluates_text`` is False. If ``replayable``,
    peers can reproduce its trajectories; if ``hidden``, luck may decide their rewards.
    """

    evaluates_text = False

    def __init__(
        self, environment: type[Environment], levels: Sequence[Mapping[str, Any]], extract: Extract
    ) -> None:
        self._environment = environment
        self._levels = tuple(levels)
        self._read = partial(read_turn, extract=extract)
        self.waits = is_async(environment)
        self.levels = len(self._levels)
        self.replayable = environment.replayable
        self.hidden = bool(getattr(environment, "hidden", True))

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """Return the first observation of the episode that ``number`` seeds."""
        entry = {"level": level, "number": number}
        return {"question": run(self.episode(entry).begin(), waits=self.waits), **entry}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return the reward of a single-turn trajectory, which may be truncated."""
        return self.replay(entry, (answer,), truncated=True)

    def replay(self, entry: Mapping[str, Any], turns: Sequence[str], *, truncated: bool) -> float:
        """Replay a trajectory for its reward; raise ``NotReplayed`` or ``EpisodeError``."""
        return run(replayed(self.episode(entry), turns, truncated=truncated), waits=self.waits)

    def episode(self, entry: Mapping[str, Any]) -> Episode:
        return Episode(self._environment, entry["number"], self._levels[entry["level"]], self._read)


def open_environment(
    spec: EnvSpec, levels: Sequence[Mapping[str, Any]], file: str | Path | None
) -> Environments:
    """Open the environment that ``spec`` names, at its levels; without ``file`` it :func:`is_here`.

    ``file`` is the user's own file; its digest is then the version. Raises TaskSetError: wrong
    version, failed load, missing part or invalid settings.
    """
    if file:
        # First, so that no other file than the swarm's is executed.
        _check_version(spec, file_digest(Path(file)), CHANGED)
    try:
        cls = load_file(Path(file), spec.name) if file else _brought(spec.name)
    except ImportError as error:
        raise TaskSetError(f"env {spec.name!r}: {error}") from error
    if not file:
        remedy = "install the version that the swarm uses"
        _check_version(spec, getattr(cls, "version", None), remedy)
    if type(getattr(cls, "replayable", None)) is not bool:
        raise TaskSetError(
            f"env {spec.name!r}: {cls.__name__} does not say whether it is replayable: "
            "add replayable = True where the same seed and actions always give the same"
        )
    for number, level in enumerate(levels):
        _check(spec.name, number, level, cls)
    return Environments(cls, levels, spec.extract)


def _check_version(spec: EnvSpec, actual: object, remedy: str) -> None:
    if actual != spec.version:
        problem = f"env {spec.name!r} is of version {spec.version}, here is {actual}"
        raise TaskSetError(f"{problem}: {remedy}")


def _check(name: str, number: int, level: Mapping[str, Any], cls: type[Environment]) -> None:
    try:
        problem = unfit(cls, level)
    except (Exception, SystemExit) as error:  # an undefined type hint, or its own refusal
        reason = f"the settings of {cls.__name__}.reset cannot be checked: {error!r}"
        raise TaskSetError(f"env {name!r} level {number}: {reason}") from error
    if problem:
        raise TaskSetError(f"env {name!r} level {number}: {problem}")


def absent(name: str) -> str | None:
    """Return the remedy if the library of an environment is missing, else None."""
    if (library := LIBRARIES.get(name)) and not library.is_here():
        return f"env {name!r} is not available here: {library.remedy}"
    return None


def is_here(name: str) -> bool:
    """Return whether an environment is installed, without running its code."""
    if library := LIBRARIES.get(name):
        return library.is_here()
    return name in SHIPPED or bool(entry_points(group=GROUP, name=name))


def _brought(name: str) -> type[Environment]:
    if shipped := SHIPPED.get(name):
        return shipped
    if library := LIBRARIES.get(name):
        return library.load()
    entry = next(iter(entry_points(group=GROUP, name=name)))
    try:
        return environment_of(entry.load())
    except (Exception, SystemExit) as error:  # a package's code may raise anything
        raise ImportError(f"{entry.value} fails: {raised(error)}") from error
