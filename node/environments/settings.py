"""Whether the settings of a catalogue's levels are what an environment's ``reset`` takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from node.environments.environment import Environment


def unfit(environment: type[Environment], settings: Mapping[str, Any]) -> str | None:
    """What is wrong with the settings of one level, if anything is.

    Args:
        settings: plain values out of JSON.
    """
    takes = list(inspect.signature(environment.reset).parameters.values())[2:]
    names = [each.name for each in takes]
    if unknown := sorted(settings.keys() - set(names)):
        return f"{unknown[0]} is not known: reset takes {', '.join(names) or 'none'}"
    needed = [each.name for each in takes if each.default is inspect.Parameter.empty]
    if missing := [name for name in needed if name not in settings]:
        return f"{missing[0]} is missing: reset takes {', '.join(names)}"
    hints = get_type_hints(environment.reset)
    for name, value in settings.items():
        wanted = hints.get(name)
        if wanted in (bool, int, float, str) and not _is(value, wanted):
            return f"{name} = {value!r}: reset takes {wanted.__name__}"
    return None


def _is(value: Any, wanted: type) -> bool:
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted
