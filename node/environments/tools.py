"""Tool classes as environments, and a parser for tool calls.

A tool class has ``reset(seed=..., **row)``, ``get_reward()`` and public methods with type hints and
docstrings: the tools (``environment_factory`` of TRL 1.16's ``GRPOTrainer``, plus ``seed``).
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from node.environments.environment import Environment, adapted, awaited, finished, misfit

MOST_CALLS = 16  # per turn
DEEPEST = 32  # nesting of arguments, below every JSON parser's limit
THOUGHT = "</think>"
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
MARK = re.compile(r"\s*(?:\[TOOL_CALLS\]|<\|python_tag\|>)?\s*")
OPENING = re.compile(r"\s*([A-Za-z_]\w{0,63})\(\s*", re.ASCII)
KEYWORD = re.compile(r"([A-Za-z_]\w{0,63})\s*=\s*", re.ASCII)
BETWEEN = re.compile(r"\s*(,|\))\s*")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; only the plain form has ``positional`` arguments."""

    name: str
    named: dict[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()


class MalformedCall(ValueError):  # noqa: N818 - a finding
    """A call that cannot be parsed; the message says why."""


def tool_calls(text: str) -> list[ToolCall]:
    """Return the calls in a turn, none in an answer; raises ``MalformedCall``."""
    said = text.rpartition(THOUGHT)[2]
    if tagged := TAGGED.findall(said):
        calls = [call for each in tagged for call in _objects(_read(each))]
    elif (bare := MARK.sub("", said, count=1)).startswith(("{", "[")):
        calls = _bare(bare, marked=MARK.match(said)[0].strip() != "")  # type: ignore[index]
    else:
        calls = list(_plain(said))
    if len(calls) > MOST_CALLS:
        raise MalformedCall(f"{len(calls)} calls in a turn: at most {MOST_CALLS}")
    return calls


def _bare(text: str, *, marked: bool) -> list[ToolCall]:
    """Parse untagged JSON: without a mark, JSON that is not a call is an answer."""
    try:
        return _objects(_read(text))
    except MalformedCall:
        if marked or '"name"' in text:
            raise
        return []


def _read(text: str) -> Any:
    _check_depth(text)
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise MalformedCall("a call that is not JSON") from error


def _objects(value: Any) -> list[ToolCall]:
    found = []
    for each in value if isinstance(value, list) else [value]:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            raise MalformedCall('no object with a "name" and "arguments"')
        named = each.get("arguments", each.get("parameters", {}))
        if isinstance(named, str):
            named = _read(named)
        if not isinstance(named, dict):
            raise MalformedCall(f'the "arguments" of {name[:64]} are not an object')
        found.append(ToolCall(name, named))
    return found


def _plain(text: str) -> Iterator[ToolCall]:
    """Parse calls; text that does not begin and end like one is an answer."""
    if not OPENING.match(text) or not text.rstrip().endswith(")"):
        return
    _check_depth(text)
    at = 0
    while at < len(text):
        opening = OPENING.match(text, at)
        if opening is None:
            raise MalformedCall(f"no call at character {at}")
        at, named, positional = _arguments(text, opening.end())
        yield ToolCall(opening[1], named, tuple(positional))


def _arguments(text: str, at: int) -> tuple[int, dict[str, Any], list[Any]]:
    named: dict[str, Any] = {}
    positional: list[Any] = []
    if text.startswith(")", at):
        return len(text) - len(text[at + 1 :].lstrip()), named, positional
    reader = json.JSONDecoder(parse_constant=_no_number)
    while True:
        keyword = KEYWORD.match(text, at)
        try:
            value, at = reader.raw_decode(text, keyword.end() if keyword else at)
        except ValueError as error:
            raise MalformedCall("an argument that is not JSON") from error
        if keyword is None:
            if named:
                raise MalformedCall("an argument without a name behind one with a name")
            positional.append(value)
        elif keyword[1] in named:
            raise MalformedCall(f"{keyword[1]} is given twice")
        else:
            named[keyword[1]] = value
        between = BETWEEN.match(text, at)
        if between is None:
            raise MalformedCall(f"neither a comma nor a bracket at character {at}")
        at = between.end()
        if between[1] == ")":
            return at, named, positional


def _check_depth(text: str) -> None:
    depth = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if depth > DEEPEST:
            raise MalformedCall(f"nested more than {DEEPEST} deep")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


OWN = ("reset", "get_reward")  # public methods that are not tools
INVITATION = "Call a tool, as name(argument=value), or answer."


def is_tool_class(found: type[Any]) -> bool:
    """Return whether a class is a tool class and not already an environment."""
    return not hasattr(found, "step") and all(callable(getattr(found, x, None)) for x in OWN)


def tools_of(found: type[Any]) -> dict[str, Callable[..., Any]]:
    members = inspect.getmembers(found, inspect.isfunction)
    own = {name: tool for name, tool in members if not name.startswith("_") and name not in OWN}
    # TRL does not offer static methods as tools.
    static = {x for x in own if isinstance(inspect.getattr_static(found, x), staticmethod)}
    return {name: tool for name, tool in own.items() if name not in static}


def as_environment(found: type[Any]) -> type[Environment]:
    """Return the environment of a tool class.

    Turns with calls are answered with the results, one per line. A turn without calls is the final
    answer. Malformed calls and exceptions of tools are answered with an error. Raises TypeError: it
    has no tools, one without a docstring, or a ``reset`` without a seed; NameError: a type hint is
    not defined.
    """
    tools = tools_of(found)
    if not tools:
        raise TypeError(f"{found.__name__} has no public method that is a tool")
    for name, tool in tools.items():
        if not inspect.getdoc(tool):
            raise TypeError(
                f"{found.__name__}.{name} has no docstring, which is what a model reads"
            )
        get_type_hints(tool)  # fails where a type is not defined
    methods = (found.reset, found.get_reward, *tools.values())
    waits = any(inspect.iscoroutinefunction(method) for method in methods)
    base = _Waiting if waits else _Ready
    return adapted(found, base, made_of=found, tools=tools, reset=_reset_like(base.reset, found))


class _Waiting:
    """Tools of which some are async."""

    made_of: ClassVar[type[Any]]
    tools: ClassVar[Mapping[str, Callable[..., Any]]]

    async def reset(self, seed: int, **row: Any) -> str:
        self._object = self.made_of()
        observation = await awaited(self._object.reset(seed=seed, **row))
        first = "" if observation is None else _text(observation)
        listed = "\n".join(f"- {described(name, tool)}" for name, tool in self.tools.items())
        return f"{first}\n\nTools:\n{listed}\n{INVITATION}".lstrip()

    async def step(self, action: str) -> tuple[str, bool]:
        try:
            calls = tool_calls(action)
        except MalformedCall as error:
            return f"error: {error}", False
        if not calls:
            return "", True
        return "\n".join([await self._result(call) for call in calls]), False

    async def reward(self) -> Any:
        return await awaited(self._object.get_reward())

    async def _result(self, call: ToolCall) -> str:
        tool = self.tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name[:64]}, only {', '.join(self.tools)}"
        if wrong := _unfit(tool, call):
            return f"error: {wrong}"
        try:
            return _text(await awaited(tool(self._object, *call.positional, **call.named)))
        except (MemoryError, RecursionError):
            raise  # the result would depend on the machine
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is what it answers
            return f"error: {_reason(error)}"


class _Ready(_Waiting):
    """Tools without async methods."""

    def reset(self, seed: int, **row: Any) -> Any:
        return finished(super().reset(seed, **row))

    def step(self, action: str) -> Any:
        return finished(super().step(action))

    def reward(self) -> Any:
        return finished(super().reward())


def _reset_like(plain: Callable[..., Any], found: type[Any]) -> Callable[..., Any]:
    """Return a ``reset(self, seed, …)`` with the class's own arguments and types."""
    own = inspect.signature(found.reset)
    takes = [x for x in own.parameters.values() if x.name not in ("self", "seed")]
    open_end = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in takes)
    if "seed" not in own.parameters and not open_end:
        raise TypeError(
            f"{found.__name__}.reset takes no seed, from which all chance has to follow"
        )

    # Each class needs a function of its own, because the signature is the function's.
    @functools.wraps(plain)
    def reset(self: Any, seed: int, **row: Any) -> Any:
        return plain(self, seed, **row)

    first = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in ("self", "seed")]
    rest = [
        x if x.kind is inspect.Parameter.VAR_KEYWORD else x.replace(kind=x.KEYWORD_ONLY)
        for x in takes
    ]
    reset.__signature__ = own.replace(parameters=[*first, *rest])  # type: ignore[attr-defined]
    reset.__annotations__ = get_type_hints(found.reset)
    return reset


def signature_of(name: str, tool: Callable[..., Any]) -> str:
    """Return a tool's name, arguments and types, the same in every Python version."""
    hints, shown = get_type_hints(tool), []
    for each in _takes(tool):
        text = f"{each.name}: {_type_name(hints[each.name])}" if each.name in hints else each.name
        required = each.default is inspect.Parameter.empty
        shown.append(text if required else f"{text} = {_text(each.default)}")
    result = hints.get("return")
    returned = "" if result in (None, type(None)) else f" -> {_type_name(result)}"
    return f"{name}({', '.join(shown)}){returned}"


def described(name: str, tool: Callable[..., Any]) -> str:
    """Return a tool's signature and docstring on one line."""
    return f"{signature_of(name, tool)}: {' '.join((inspect.getdoc(tool) or '').split())}"


def _takes(tool: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(tool).parameters.values())[1:]


def _unfit(tool: Callable[..., Any], call: ToolCall) -> str | None:
    takes = [each.name for each in _takes(tool)]
    if len(call.positional) > len(takes):
        return f"{call.name} takes {len(takes)} arguments, not {len(call.positional)}"
    given = dict(zip(takes, call.positional, strict=False))
    if twice := sorted(given.keys() & call.named.keys()):
        return f"{twice[0]} is given twice"
    return misfit(call.name, _takes(tool), get_type_hints(tool), given | call.named)


def _reason(error: Exception) -> str:
    """Describe an error, without Python's own message, which differs by version."""
    kind = type(error)
    stable = kind is ValueError or kind.__module__ != "builtins"
    return f"{kind.__name__}: {error}" if stable and str(error) else kind.__name__


def _type_name(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(part) for part in parts)
    if origin in (Union, types.UnionType):
        return " | ".join("None" if part is type(None) else _type_name(part) for part in parts)
    name = getattr(origin or hint, "__name__", None) or str(hint)
    return f"{name}[{', '.join(_type_name(part) for part in parts)}]" if parts else name


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
