"""Vectors of the codec, of answers, and of trajectories in the shipped ``guess``."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from node.environments.environment import Episode, finished
from node.environments.games import Guess
from node.environments.own_file import NotReplayed, replayed
from protocol.codec import CodecLimits, encode
from tests.protocol.views import tagged, valid

LIMITS = CodecLimits(bytes=64, depth=3, items=12, str_len=40, bin_len=16)
VALID = {
    "nil": None,
    "false": False,
    "true": True,
    "zero": 0,
    "largest one-byte integer": 127,
    "u8": 128,
    "u16": 256,
    "u32": 1 << 16,
    "u64": 1 << 32,
    "largest integer": (1 << 64) - 1,
    "smallest one-byte integer": -32,
    "i8": -33,
    "i16": -129,
    "i32": -32769,
    "i64": -(1 << 31) - 1,
    "smallest integer": -(1 << 63),
    "float": 0.1,
    "float that is a whole number": 1.0,
    "negative zero": -0.0,
    "empty string": "",
    "longest one-byte-head string": "x" * 31,
    "str8": "x" * 32,
    "UTF-8": "é✗🙂",
    "byte string": b"\x00\xff",
    "empty byte string": b"",
    "array": [1, "a", b"a", None],
    "map keeps its order": {"b": 1, "a": 2},
    "deepest": [[[]]],
    "most items": list(range(11)),
}


def rows(kind: str) -> Iterator[list[Any]]:
    """Read the cases of a kind, one per line of its file in this folder."""
    lines = Path(__file__).with_name(f"{kind}.jsonl").read_text().splitlines()
    return map(json.loads, lines)


def codec() -> dict:
    """Return encoded values, and invalid input with name, hex and error."""
    vectors = [valid(name, encode(value), tagged(value)) for name, value in VALID.items()]
    vectors += [{"name": name, "input": data, "error": e} for name, data, e in rows("codec")]
    return {"context": {"limits": asdict(LIMITS)}, "vectors": vectors}


def answers() -> dict:
    """Return ``answers.jsonl``: name, ``extract``, text, right answer, parsed answer.

    A sixth word marks a right answer as verbatim or the text as a turn.
    """
    vectors = [
        valid(name, text.encode(), answer, extract=how, right=right, **dict.fromkeys(words, True))
        for name, how, text, right, answer, *words in rows("answers")
    ]
    return {"context": {}, "vectors": vectors}


NUMBER, LEVEL = 1234, {"most": 8, "tries": 4}


def entry(
    *turns: str, cut: bool = False, number: int = NUMBER, settings: dict[str, Any] = LEVEL
) -> dict:
    """Make a case of turns with the reward, or with the refusal to replay them."""
    first = finished(Episode(Guess, number, settings).begin())
    try:
        again = replayed(Episode(Guess, number, settings), turns, truncated=cut)
        outcome: dict[str, Any] = {"reward": finished(again)}
    except NotReplayed:
        outcome = {"refused": "not_replayed"}
    case = {"number": number, "settings": settings, "turns": list(turns), "cut": cut}
    return {"input": "", **case, "expected": {"first": first, **outcome}}


def played(*guesses: str) -> tuple[str, ...]:
    """Return the guesses and the answers between them."""
    episode = Episode(Guess, NUMBER, LEVEL)
    finished(episode.begin())
    turns = [each for guess in guesses for each in (guess, finished(episode.step(guess)))]
    return tuple(turns[:-1])


def solve(number: int, settings: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the hidden number, and all possible guesses."""
    low = int(entry(number=number, settings=settings)["expected"]["first"].split()[2])
    guesses = [str(low + n) for n in range(settings["most"])]
    results = (entry(each, number=number, settings=settings)["expected"] for each in guesses)
    rewards = [each.get("reward") for each in results]
    return guesses[rewards.index(1.0)], guesses


def drawn(case: tuple[int, int]) -> tuple[str, dict]:
    """Make a game with a range that grows with the place, solved by the first guess."""
    place, number = case
    settings = {"most": 2 + 13 * place, "tries": 1}
    hidden, _ = solve(number, settings)
    return f"drawn from {settings['most']}", entry(hidden, number=number, settings=settings)


def transcripts() -> dict:
    """Return trajectories to replay as docs/protocol.md specifies."""
    hidden, guesses = solve(NUMBER, LEVEL)
    other = [each for each in guesses if each != hidden][:4]
    cases = {
        "found at once": entry(hidden),
        "found at the second try": entry(*played(other[0], hidden)),
        "never found": entry(*played(*other)),
        "what is no number costs a try": entry(*played("٣", "", "12345", hidden)),
        "cut before the end": entry(other[0], cut=True),
        "not said to be cut": entry(other[0]),
        "said to be cut at the end": entry(hidden, cut=True),
        "another observation": entry(other[0], "warmer", hidden),
        "an observation with a blank more": entry(
            other[0], f"{played(other[0], hidden)[1]} ", hidden
        ),
        "a turn after the end": entry(hidden, "", hidden),
        "a turn that is too long before it is read": entry(f"<think>{'.' * 65522}</think>{hidden}"),
        "zeros in front": entry(hidden.zfill(4)),
        "a blank in front": entry(f" {hidden}", cut=True),
        "the first turn dropped": entry(*played(other[0], other[1], hidden)[2:]),
        "the seed of another task": entry(hidden, number=NUMBER + 1),
        "a seed of 63 bits": entry("500", cut=True, number=(1 << 63) - 1),
        "another level": entry("500", cut=True, settings={"most": 4, "tries": 3}),
        "cut with one try left": entry(*played(*other[:3]), cut=True),
        "cut behind an invalid turn": entry("no", cut=True),
        **dict(map(drawn, enumerate((*range(6), (1 << 31) - 1, (1 << 62) + 1)))),
    }
    vectors = [{"name": name, **case} for name, case in cases.items()]
    return {"context": {"env": "guess", "version": "1"}, "vectors": vectors}
