"""Environments in a file of the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from node.environments.environment import Environment
from node.environments.tools import as_environment, is_tool_class

METHODS = ("reset", "step", "reward")
_HERE = "node.environments"
OF_LIBRARIES = {
    "gymnasium.core.Env": f"{_HERE}.gymnasium",
    "verifiers.v1.taskset.Taskset": f"{_HERE}.verifiers",
}
"""Classes of other libraries, and which of our modules makes environments of theirs."""


def load_file(path: Path, name: str) -> type[Environment]:
    """The class of environments that a Python file defines.

    Where it defines several, the one whose name is ``name``, in any case.

    Raises:
        ImportError: there is none, or the file cannot be run; the message says why.
    """
    module_name = f"swarm_node_environment_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportError(f"{str(path)!r} fails: {error!r}") from error
    defined = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module_name and _is_one(each)
    ]
    named = [each for each in defined if each.__name__.lower() == name.lower()]
    found = named or defined
    if len(found) != 1:
        raise ImportError(
            f"{str(path)!r} defines {len(found)} classes with {', '.join(METHODS)}, or with "
            "reset, get_reward and tools: "
            f"name the one that is meant {name.capitalize()}"
        )
    try:
        return environment_of(found[0])
    except TypeError as error:
        raise ImportError(f"{str(path)!r}: {error}") from error


def environment_of(found: type[Any]) -> type[Environment]:
    """A class as an environment: as it is, with its tools as what a turn calls, or as what its
    library makes of it.

    Raises:
        TypeError: its tools cannot be called by a policy.
    """
    if module := _library(found):
        adapter: type[Environment] = importlib.import_module(module).as_environment(found)
        return adapter
    return as_environment(found) if is_tool_class(found) else found


def _library(found: type[Any]) -> str | None:
    """Our module that makes an environment of a class, which has imported its library already."""
    bases = (f"{each.__module__}.{each.__name__}" for each in found.__mro__[1:])
    return next((module for base in bases if (module := OF_LIBRARIES.get(base))), None)


def _is_one(found: type[Any]) -> bool:
    whole = all(callable(getattr(found, x, None)) for x in METHODS)
    return whole or is_tool_class(found) or _library(found) is not None


@dataclass(frozen=True, slots=True)
class Library:
    """One, by the name of its package, which is that of the extra and of our module as well.

    Attributes:
        adapter: the class in our module.
    """

    package: str
    adapter: str

    @property
    def remedy(self) -> str:
        """How to get it."""
        return f"pip install 'swarm-node[{self.package}]'"

    def is_here(self) -> bool:
        """Whether it is installed; nothing of it is run."""
        return find_spec(self.package) is not None

    def load(self) -> type[Environment]:
        """Its environment.

        Raises:
            ImportError: it cannot be imported; the message says why.
        """
        module = importlib.import_module(f"node.environments.{self.package}")
        adapter: type[Environment] = getattr(module, self.adapter)
        return adapter


LIBRARIES: Mapping[str, Library] = {
    "gymnasium": Library("gymnasium", "GymnasiumTask"),
    "textarena": Library("textarena", "TextArenaGame"),
}
"""By the name of the env in a catalogue."""
