"""A trajectory played once more, by whoever was told of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from node.environments.environment import Episode

BEFORE, SHOWN = 20, 60
"""Characters that are told of texts that differ, from so many before they part."""


class NotReplayed(Exception):  # noqa: N818 - a finding
    """The environment answers otherwise than it is said to have; the message tells where."""


async def replayed(episode: Episode, turns: Sequence[str], *, cut: bool) -> float:
    """The reward of a trajectory, if its observations are what the environment gives.

    Args:
        episode: fresh.
        turns: what the policy wrote and what it was answered, by turns, the policy first and last.
        cut: whether it may end before the environment does.

    Raises:
        NotReplayed: an observation is another, turns follow the end, or it is not reached.
        EpisodeError: the environment breaks its word.
    """
    await episode.begin()
    for number, action in enumerate(turns[::2], 1):
        if episode.over:
            raise NotReplayed(f"turn {number} follows the end")
        observation = await episode.step(action)
        told = turns[2 * number - 1 : 2 * number]
        if told and not episode.over and observation != told[0]:
            raise NotReplayed(f"turn {number} is answered {differing(observation, told[0])}")
    if not episode.over and not cut:
        raise NotReplayed(f"it does not end with turn {len(turns[::2])}")
    return await episode.reward()


def differing(found: str, told: str) -> str:
    """Where two texts part, in words."""
    apart = (n for n, pair in enumerate(zip(found, told, strict=False)) if pair[0] != pair[1])
    begin = max(0, next(apart, min(len(found), len(told))) - BEFORE)
    parts = (each[begin : begin + SHOWN] for each in (found, told))
    return ", not ".join("…" * (begin > 0) + repr(part) for part in parts)


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
