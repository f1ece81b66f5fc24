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
    body = text.rpartition(THOUGHT)[2]
    if blocks := TAGGED.findall(body):
        calls = [call for block in blocks for call in _objects(_read(block))]
    elif (json_text := MARK.sub("", body, count=1)).startswith(("{", "[")):
        calls = _bare(json_text, marked=MARK.match(body)[0].strip() != "")  # type: ignore[index]
    else:
        calls = list(_plain(body))
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
    calls = []
    for item in value if isinstance(value, list) else [value]:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise MalformedCall('no object with a "name" and "arguments"')
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _read(arguments)
        if not isinstance(arguments, dict):
            raise MalformedCall(f'the "arguments" of {name[:64]} are not an object')
        calls.append(ToolCall(name, arguments))
    return calls


def _plain(text: str) -> Iterator[ToolCall]:
    """Parse calls; text that does not begin and end like one is an answer."""
    if not OPENING.match(text) or not text.rstrip().endswith(")"):
        return
    _check_depth(text)
    index = 0
    while index < len(text):
        opening = OPENING.match(text, index)
        if opening is None:
            raise MalformedCall(f"no call at character {index}")
        index, named, positional = _arguments(text, opening.end())
        yield ToolCall(opening[1], named, tuple(positional))


def _arguments(text: str, index: int) -> tuple[int, dict[str, Any], list[Any]]:
    named: dict[str, Any] = {}
    positional: list[Any] = []
    if text.startswith(")", index):
        return len(text) - len(text[index + 1 :].lstrip()), named, positional
    decoder = json.JSONDecoder(parse_constant=_no_number)
    while True:
        keyword = KEYWORD.match(text, index)
        try:
            value, index = decoder.raw_decode(text, keyword.end() if keyword else index)
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
        separator = BETWEEN.match(text, index)
        if separator is None:
            raise MalformedCall(f"neither a comma nor a bracket at character {index}")
        index = separator.end()
        if separator[1] == ")":
            return index, named, positional


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
    methods = {name: tool for name, tool in members if not name.startswith("_") and name not in OWN}
    # TRL does not offer static methods as tools.
    static = {x for x in methods if isinstance(inspect.getattr_static(found, x), staticmethod)}
    return {name: tool for name, tool in methods.items() if name not in static}


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
    has_async = any(inspect.iscoroutinefunction(method) for method in methods)
    base = _Waiting if has_async else _Ready
    return adapted(found, base, made_of=found, tools=tools, reset=_reset_like(base.reset, found))


class _Waiting:
    """Tools of which some are async."""

    made_of: ClassVar[type[Any]]
    tools: ClassVar[Mapping[str, Callable[..., Any]]]

    async def reset(self, seed: int, **row: Any) -> str:
        self._object = self.made_of()
        observation = await awaited(self._object.reset(seed=seed, **row))
        intro = "" if observation is None else _text(observation)
        tool_list = "\n".join(f"- {described(name, tool)}" for name, tool in self.tools.items())
        return f"{intro}\n\nTools:\n{tool_list}\n{INVITATION}".lstrip()

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
        if problem := _unfit(tool, call):
            return f"error: {problem}"
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


def _reset_like(base_reset: Callable[..., Any], cls: type[Any]) -> Callable[..., Any]:
    """Return a ``reset(self, seed, …)`` with the class's own arguments and types."""
    sig = inspect.signature(cls.reset)
    params = [x for x in sig.parameters.values() if x.name not in ("self", "seed")]
    accepts_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in params)
    if "seed" not in sig.parameters and not accepts_any:
        raise TypeError(f"{cls.__name__}.reset takes no seed, from which all chance has to follow")

    # Each class needs a function of its own, because the signature is the function's.
    @functools.wraps(base_reset)
    def reset(self: Any, seed: int, **row: Any) -> Any:
        return base_reset(self, seed, **row)

    fixed = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in ("self", "seed")]
    named = [
        x if x.kind is inspect.Parameter.VAR_KEYWORD else x.replace(kind=x.KEYWORD_ONLY)
        for x in params
    ]
    reset.__signature__ = sig.replace(parameters=[*fixed, *named])  # type: ignore[attr-defined]
    reset.__annotations__ = get_type_hints(cls.reset)
    return reset


def signature_of(name: str, tool: Callable[..., Any]) -> str:
    """Return a tool's name, arguments and types, the same in every Python version."""
    hints, params = get_type_hints(tool), []
    for arg in _takes(tool):
        text = f"{arg.name}: {_type_name(hints[arg.name])}" if arg.name in hints else arg.name
        required = arg.default is inspect.Parameter.empty
        params.append(text if required else f"{text} = {_text(arg.default)}")
    result = hints.get("return")
    suffix = "" if result in (None, type(None)) else f" -> {_type_name(result)}"
    return f"{name}({', '.join(params)}){suffix}"


def described(name: str, tool: Callable[..., Any]) -> str:
    """Return a tool's signature and docstring on one line."""
    return f"{signature_of(name, tool)}: {' '.join((inspect.getdoc(tool) or '').split())}"


def _takes(tool: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(tool).parameters.values())[1:]


def _unfit(tool: Callable[..., Any], call: ToolCall) -> str | None:
    names = [param.name for param in _takes(tool)]
    if len(call.positional) > len(names):
        return f"{call.name} takes {len(names)} arguments, not {len(call.positional)}"
    arguments = dict(zip(names, call.positional, strict=False))
    if repeated := sorted(arguments.keys() & call.named.keys()):
        return f"{repeated[0]} is given twice"
    return misfit(call.name, _takes(tool), get_type_hints(tool), arguments | call.named)


def _reason(error: Exception) -> str:
    """Describe an error, without Python's own message, which differs by version."""
    kind = type(error)
    stable = kind is ValueError or kind.__module__ != "builtins"
    return f"{kind.__name__}: {error}" if stable and str(error) else kind.__name__


def _type_name(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " | ".join("None" if arg is type(None) else _type_name(arg) for arg in args)
    name = getattr(origin or hint, "__name__", None) or str(hint)
    return f"{name}[{', '.join(_type_name(arg) for arg in args)}]" if args else name


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
