"""Calls of tools in what a policy writes, by the forms that chat templates teach, and a plain one.

Everybody who replays a trajectory has to find the same calls in it, whatever model wrote it: all
forms are read alike everywhere, from the text alone, and what is wrong is told in words that no
version of Python changes.

- ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``, any number of them (Hermes,
  Qwen, SmolLM);
- ``{"name": "add", "parameters": {"a": 1}}`` or a list of such, and nothing else but the marks
  ``[TOOL_CALLS]`` or ``<|python_tag|>`` in front (Mistral, Llama 3);
- ``add(a=1, b="x")`` or ``add(1, "x")``, values in JSON, one or several and nothing else.

What stands in front of ``</think>`` is no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_CALLS = 16
"""In a turn."""
DEEPEST = 32
"""Nesting of arguments, short of what any reader of JSON refuses by itself."""
THOUGHT = "</think>"
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
MARK = re.compile(r"\s*(?:\[TOOL_CALLS\]|<\|python_tag\|>)?\s*")
OPENING = re.compile(r"\s*([A-Za-z_]\w{0,63})\(\s*", re.ASCII)
KEYWORD = re.compile(r"([A-Za-z_]\w{0,63})\s*=\s*", re.ASCII)
BETWEEN = re.compile(r"\s*(,|\))\s*")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        named: arguments by name.
        positional: others, in their order; only the plain form has any.
    """

    name: str
    named: dict[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()


class MalformedCall(ValueError):  # noqa: N818 - a finding
    """What was meant as a call cannot be read; the message says why."""


def tool_calls(text: str) -> list[ToolCall]:
    """The calls in a turn, none where it is an answer.

    Raises:
        MalformedCall: what looks like one cannot be read.
    """
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
    """Calls where JSON alone stands: any other JSON is an answer, unless it is marked as calls."""
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
            raise MalformedCall(f'the "arguments" of {name[:64]} are no object')
        found.append(ToolCall(name, named))
    return found


def _plain(text: str) -> Iterator[ToolCall]:
    """Calls where they alone stand; text that does not begin or end as one is an answer."""
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
    """Arguments from behind the bracket on, and where they end."""
    named: dict[str, Any] = {}
    positional: list[Any] = []
    if text.startswith(")", at):
        return at + 1 + _spaces(text, at + 1), named, positional
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


def _spaces(text: str, at: int) -> int:
    return len(text) - at - len(text[at:].lstrip())


def _check_depth(text: str) -> None:
    depth = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if depth > DEEPEST:
            raise MalformedCall(f"nested more than {DEEPEST} deep")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")
