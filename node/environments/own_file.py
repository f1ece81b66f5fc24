"""Environments from a user's file or another library, replay, and random guesses."""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from node.environments.environment import Environment, Episode, raised
from node.environments.tools import as_environment, is_tool_class

METHODS = ("reset", "step", "reward")
_HERE = "node.environments"
OF_LIBRARIES = {
    "gymnasium.core.Env": f"{_HERE}.gymnasium",
    "verifiers.v1.taskset.Taskset": f"{_HERE}.verifiers",
}  # base class of a library to adapter module


def load_file(path: Path, name: str) -> type[Environment]:
    """Return the environment class in a Python file, among several the one ``name``.

    Raises ImportError: there is none, or the file fails; the message says why.
    """
    module_name = f"swarm_node_environment_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ImportError(f"{str(path)!r} fails: {raised(error)}") from error
    candidates = [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module_name and _is_one(cls)
    ]
    classes = [cls for cls in candidates if _plain(cls.__name__) == _plain(name)] or candidates
    if len(classes) != 1:
        raise ImportError(_not_one(path, name, classes))
    try:
        return environment_of(classes[0])
    except TypeError as error:
        raise ImportError(f"{str(path)!r}: {error}") from error
    except Exception as error:  # such as a type hint that is not defined
        raise ImportError(f"{str(path)!r} fails: {raised(error)}") from error


def _plain(name: str) -> str:
    """Return an env's or class's name without case and what separates words."""
    return re.sub(r"[_.-]", "", name).lower()


def _not_one(path: Path, name: str, found: Sequence[type[Any]]) -> str:
    kind = f"with {', '.join(METHODS)}, or with reset, get_reward and tools"
    if not found:
        return f"{str(path)!r} defines no class {kind}: add one"
    words = [word[:1].upper() + word[1:] for word in re.split("[_.-]+", name)]
    camel = re.sub(r"^(?=\d)", "_", "".join(words))
    names = ", ".join(cls.__name__ for cls in found)
    return f"{str(path)!r} defines {len(found)} classes {kind}: {names}: name the right one {camel}"


def environment_of(found: type[Any]) -> type[Environment]:
    """Return a class as an environment; raises ``TypeError`` for unusable tools."""
    if module := _library(found):
        adapter: type[Environment] = importlib.import_module(module).as_environment(found)
        return adapter
    return as_environment(found) if is_tool_class(found) else found


def _library(cls: type[Any]) -> str | None:
    """Return the adapter module of a class; its library is already imported."""
    bases = (f"{parent.__module__}.{parent.__name__}" for parent in cls.__mro__[1:])
    return next((module for base in bases if (module := OF_LIBRARIES.get(base))), None)


def _is_one(cls: type[Any]) -> bool:
    has_methods = all(callable(getattr(cls, x, None)) for x in METHODS)
    return has_methods or is_tool_class(cls) or _library(cls) is not None


@dataclass(frozen=True, slots=True)
class Library:
    """A library, named like its package, its extra and its module here."""

    package: str
    adapter: str

    @property
    def remedy(self) -> str:
        return f"pip install '.[{self.package}]' in the clone"

    def is_here(self) -> bool:
        """Return whether it is installed, without running its code."""
        return find_spec(self.package) is not None

    def load(self) -> type[Environment]:
        """Return its environment; raises ``ImportError`` if it cannot be imported."""
        module = importlib.import_module(f"node.environments.{self.package}")
        adapter: type[Environment] = getattr(module, self.adapter)
        return adapter


LIBRARIES: Mapping[str, Library] = {
    "gymnasium": Library("gymnasium", "GymnasiumTask"),
    "textarena": Library("textarena", "TextArenaGame"),
}  # by the name of the env in a task set


BEFORE, SHOWN = 20, 60  # characters shown before a difference of texts, and in all


class NotReplayed(Exception):  # noqa: N818 - a finding
    """The environment answers differently than recorded; the message says where."""


async def replayed(episode: Episode, turns: Sequence[str], *, truncated: bool) -> float:
    """Return a trajectory's reward if a replay gives the same observations.

    ``turns`` alternate between the policy, first and last, and observations. If ``truncated``, they
    may stop early. Raises ``NotReplayed`` on a difference and ``EpisodeError`` if the environment
    fails.
    """
    await episode.begin()
    for number, action in enumerate(turns[::2], 1):
        if episode.over:
            raise NotReplayed(f"turn {number} follows the end")
        observation = await episode.step(action)
        recorded = turns[2 * number - 1 : 2 * number]
        if recorded and not episode.over and observation != recorded[0]:
            raise NotReplayed(f"turn {number} is answered {differing(observation, recorded[0])}")
    if not episode.over and not truncated:
        raise NotReplayed(f"it does not end with turn {len(turns[::2])}")
    return await episode.reward()


def differing(found: str, recorded: str) -> str:
    diffs = (n for n, pair in enumerate(zip(found, recorded, strict=False)) if pair[0] != pair[1])
    start = max(0, next(diffs, min(len(found), len(recorded))) - BEFORE)
    excerpts = (text[start : start + SHOWN] for text in (found, recorded))
    return ", not ".join("…" * (start > 0) + repr(excerpt) for excerpt in excerpts)


BRACKETED = re.compile(r"\[[^\[\]\n]{1,40}\]")
TOOL = re.compile(r"^- ([A-Za-z_]\w{0,63})\(([^()\n]*)\)", re.MULTILINE | re.ASCII)
WORD = re.compile(r"[A-Za-z]+|[0-9]+")
DIGIT = re.compile(r"[0-9]")
CALLED = 0.8  # fraction of guesses that call a tool, if there are any; others end the episode
REDRAWN = 0.5  # fraction of guesses with new random digits


def guess(shown: Sequence[str], rng: random.Random) -> str:
    """Return a random turn: bracketed text, a tool call, a word or a number.

    ``shown`` is usually the first observation, which explains the moves, and the latest.
    """
    text = "\n".join(shown)
    words: list[str] = WORD.findall(text)
    calls = [_call(tool, signature, words, rng) for tool, signature in TOOL.findall(text)]
    if calls and rng.random() < CALLED:
        return rng.choice(calls)
    options = [group for group in (BRACKETED.findall(text), words) if group]
    turn = rng.choice(rng.choice(options)) if options else "0"
    return DIGIT.sub(lambda _: str(rng.randrange(10)), turn) if rng.random() < REDRAWN else turn


def _call(tool: str, signature: str, words: Sequence[str], rng: random.Random) -> str:
    values: dict[str, Callable[[], object]] = {
        "int": lambda: rng.randrange(10),
        "float": lambda: rng.randrange(100) / 10,
        "bool": lambda: rng.choice(("true", "false")),
        "str": lambda: f'"{rng.choice(words)}"',
    }
    params = re.findall(r"(\w+): (\w+)", signature)
    arguments = [f"{name}={values[kind]()}" for name, kind in params if kind in values]
    return f"{tool}({', '.join(arguments)})"
