"""Environments in a file of the user's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from node.environments.environment import Environment

METHODS = ("reset", "step", "reward")


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
        if isinstance(each, type)
        and each.__module__ == module_name
        and all(callable(getattr(each, method, None)) for method in METHODS)
    ]
    named = [each for each in defined if each.__name__.lower() == name.lower()]
    found = named or defined
    if len(found) != 1:
        raise ImportError(
            f"{str(path)!r} defines {len(found)} classes with {', '.join(METHODS)}: "
            f"name the one that is meant {name.capitalize()}"
        )
    return found[0]
