"""Turns to try an environment with that nobody has described: made of what it shows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

BRACKETED = re.compile(r"\[[^\[\]\n]{1,40}\]")
TOOL = re.compile(r"^- ([A-Za-z_]\w{0,63})\(([^()\n]*)\)", re.MULTILINE | re.ASCII)
WORD = re.compile(r"[A-Za-z]+|[0-9]+")
DIGIT = re.compile(r"[0-9]")
CALLED = 0.8
"""Of guesses where there are tools: what calls none ends the episode."""
REDRAWN = 0.5
"""Of guesses whose digits are drawn anew."""


def guess(shown: Sequence[str], rng: random.Random) -> str:
    """A turn out of some observations: what stands in brackets, a call of a tool, a word, a number.

    Args:
        shown: such as the first observation, which mostly says how to move, and the latest.
    """
    text = "\n".join(shown)
    words: list[str] = WORD.findall(text)
    calls = [_call(tool, signature, words, rng) for tool, signature in TOOL.findall(text)]
    if calls and rng.random() < CALLED:
        return rng.choice(calls)
    kinds = [found for found in (BRACKETED.findall(text), words) if found]
    turn = rng.choice(rng.choice(kinds)) if kinds else "0"
    if rng.random() < REDRAWN:
        return DIGIT.sub(lambda _: str(rng.randrange(10)), turn)
    return turn


def _call(tool: str, signature: str, words: Sequence[str], rng: random.Random) -> str:
    """A call of a tool, with a value for every argument whose type is a plain one."""
    values: dict[str, Callable[[], object]] = {
        "int": lambda: rng.randrange(10),
        "float": lambda: rng.randrange(100) / 10,
        "bool": lambda: rng.choice(("true", "false")),
        "str": lambda: f'"{rng.choice(words)}"',
    }
    takes = re.findall(r"(\w+): (\w+)", signature)
    given = [f"{name}={values[kind]()}" for name, kind in takes if kind in values]
    return f"{tool}({', '.join(given)})"
