"""Whether the settings of a catalogue's levels are what an environment's ``reset`` takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from node.environments.environment import Environment


def unfit(environment: type[Environment], settings: Mapping[str, Any]) -> str | None:
    """What is wrong with the settings of one level, if anything is.

    An environment that takes only some values of the right type says so itself, in a static method
    ``refusal(settings)``.

    Args:
        settings: plain values out of JSON.
    """
    takes = list(inspect.signature(environment.reset).parameters.values())[2:]
    if wrong := misfit("reset", takes, get_type_hints(environment.reset), settings):
        return wrong
    refusal = getattr(environment, "refusal", None)
    wrong = refusal(settings) if refusal else None
    return None if wrong is None else str(wrong)


def misfit(
    function: str,
    takes: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    given: Mapping[str, Any],
) -> str | None:
    """What keeps some values from being a function's arguments, if anything does.

    Args:
        function: its name.
        takes: the function's parameters; one of the kind ``**row`` takes whatever is left.
        hints: their types; only plain ones are held to.
        given: by name.
    """
    names = [each.name for each in takes]
    open_end = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes)
    if not open_end and (unknown := sorted(given.keys() - set(names))):
        return f"{unknown[0][:64]} is not known: {function} takes {', '.join(names) or 'none'}"
    needed = [
        each.name
        for each in takes
        if each.default is inspect.Parameter.empty
        and each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    if missing := [name for name in needed if name not in given]:
        return f"{missing[0]} is missing: {function} takes {', '.join(names)}"
    for name, value in given.items():
        wanted = hints.get(name)
        if wanted in (bool, int, float, str, list, dict) and not _is(value, wanted):
            return f"{name} = {value!r:.60}: {function} takes {wanted.__name__}"
    return None


def _is(value: Any, wanted: type) -> bool:
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted
