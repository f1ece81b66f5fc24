"""Vectors of the codec, of answers in completions, and of trajectories in the shipped ``guess``."""

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
    """The cases of a kind, one per line of its file beside this one."""
    lines = Path(__file__).with_name(f"{kind}.jsonl").read_text().splitlines()
    return map(json.loads, lines)


def codec() -> dict:
    """Values as they are encoded, and wrong input: name, hex, error."""
    vectors = [valid(name, encode(value), tagged(value)) for name, value in VALID.items()]
    vectors += [{"name": name, "input": data, "error": e} for name, data, e in rows("codec")]
    return {"context": {"limits": asdict(LIMITS)}, "vectors": vectors}


def answers() -> dict:
    """Answers as ``answers.jsonl`` has them: name, ``extract``, text, right answer, what is read.

    A sixth word says that the right answer is verbatim, or that the text is a turn.
    """
    vectors = [
        valid(name, text.encode(), answer, extract=how, right=right, **dict.fromkeys(words, True))
        for name, how, text, right, answer, *words in rows("answers")
    ]
    return {"context": {}, "vectors": vectors}


NUMBER, LEVEL = 1234, {"most": 8, "tries": 4}


def told(
    *turns: str, cut: bool = False, number: int = NUMBER, settings: dict[str, Any] = LEVEL
) -> dict:
    """Turns and what they were answered, and the reward, or that it is not replayed."""
    first = finished(Episode(Guess, number, settings).begin())
    try:
        again = replayed(Episode(Guess, number, settings), turns, cut=cut)
        outcome: dict[str, Any] = {"reward": finished(again)}
    except NotReplayed:
        outcome = {"refused": "not_replayed"}
    case = {"number": number, "settings": settings, "turns": list(turns), "cut": cut}
    return {"input": "", **case, "expected": {"first": first, **outcome}}


def played(*guesses: str) -> tuple[str, ...]:
    """Those guesses with what they are answered, the last one without."""
    episode = Episode(Guess, NUMBER, LEVEL)
    finished(episode.begin())
    turns = [each for guess in guesses for each in (guess, finished(episode.step(guess)))]
    return tuple(turns[:-1])


def sought(number: int, settings: dict[str, Any]) -> tuple[str, list[str]]:
    """The hidden number, and all that are possible."""
    low = int(told(number=number, settings=settings)["expected"]["first"].split()[2])
    guesses = [str(low + n) for n in range(settings["most"])]
    found = (told(each, number=number, settings=settings)["expected"] for each in guesses)
    rewards = [each.get("reward") for each in found]
    return guesses[rewards.index(1.0)], guesses


def drawn(case: tuple[int, int]) -> tuple[str, dict]:
    """A game whose hidden number is drawn from more and more numbers, and guessed."""
    place, number = case
    settings = {"most": 2 + 13 * place, "tries": 1}
    hidden, _ = sought(number, settings)
    return f"drawn from {settings['most']}", told(hidden, number=number, settings=settings)


def transcripts() -> dict:
    """Trajectories, as docs/protocol.md has them replayed."""
    hidden, guesses = sought(NUMBER, LEVEL)
    other = [each for each in guesses if each != hidden][:4]
    cases = {
        "found at once": told(hidden),
        "found at the second try": told(*played(other[0], hidden)),
        "never found": told(*played(*other)),
        "what is no number costs a try": told(*played("٣", "", "12345", hidden)),
        "cut before the end": told(other[0], cut=True),
        "not said to be cut": told(other[0]),
        "said to be cut at the end": told(hidden, cut=True),
        "another observation": told(other[0], "warmer", hidden),
        "an observation with a blank more": told(
            other[0], f"{played(other[0], hidden)[1]} ", hidden
        ),
        "a turn after the end": told(hidden, "", hidden),
        "a turn that is too long before it is read": told(f"<think>{'.' * 65522}</think>{hidden}"),
        "zeros in front": told(hidden.zfill(4)),
        "a blank in front": told(f" {hidden}", cut=True),
        "the first turn dropped": told(*played(other[0], other[1], hidden)[2:]),
        "the seed of another task": told(hidden, number=NUMBER + 1),
        "a seed of 63 bits": told("500", cut=True, number=(1 << 63) - 1),
        "another level": told("500", cut=True, settings={"most": 4, "tries": 3}),
        "cut with one try left": told(*played(*other[:3]), cut=True),
        "cut behind an invalid turn": told("no", cut=True),
        **dict(map(drawn, enumerate((*range(6), (1 << 31) - 1, (1 << 62) + 1)))),
    }
    vectors = [{"name": name, **case} for name, case in cases.items()]
    return {"context": {"env": "guess", "version": "1"}, "vectors": vectors}
