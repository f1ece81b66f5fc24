"""Vectors of the codec, and of trajectories in the shipped ``guess``."""

from __future__ import annotations

from dataclasses import asdict
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
INVALID = {
    "nothing": ("", "truncated"),
    "string cut short": ("a36162", "truncated"),
    "array of more items than bytes": ("93c0c0", "truncated"),
    "integer cut short": ("cd01", "truncated"),
    "a second value": ("c0c0", "trailing_bytes"),
    "u8 for a one-byte integer": "cc7f",
    "u16 for a u8": "cd00ff",
    "u32 for a u16": "ce0000ffff",
    "u64 for a u32": "cf00000000ffffffff",
    "i8 for a one-byte integer": "d0e0",
    "i8 for the smallest number of bits": "d0ff",
    "signed form of a positive integer": "d100ff",
    "i8 for a positive integer": "d005",
    "i16 for an i8": "d1ff80",
    "i32 for an i16": "d2ffff8000",
    "i64 for a positive integer": "d300000000000000ff",
    "i64 for an i32": "d3ffffffff80000000",
    "str8 for a short string": "d90161",
    "str16 for a short string": "da001f" + "61" * 31,
    "str32 for a short string": "db0000000161",
    "bin16 for a bin8": "c50001aa",
    "bin32 for a bin8": "c600000001aa",
    "array16 for a short array": "dc0001c0",
    "array32 for a short array": "dd0000000100",
    "map16 for a short map": "de0001a161c0",
    "map32 for a short map": "df00000001a16100",
    "float32": "ca3f800000",
    "NaN": "cb7ff8000000000000",
    "infinity": "cb7ff0000000000000",
    "negative infinity": "cbfff0000000000000",
    "extension": "d400aa",
    "extension of any length": "c70100aa",
    "timestamp": "d6ff00000000",
    "never-used type byte": "c1",
    "no UTF-8": "a1ff",
    "overlong UTF-8": "a2c080",
    "UTF-8 surrogate": "a3eda080",
    "integer as a key": "8100c0",
    "byte string as a key": "81c40161c0",
    "duplicate key": ("82a16101a16102", "duplicate_key"),
    "four deep": ("91919190", "too_deep"),
    "thirteen items": ("9c" + "00" * 12, "too_many_items"),
    "array that declares four billion items": ("ddffffffff", "too_many_items"),
    "string over the limit": ("d929" + "78" * 41, "too_large"),
    "byte string over the limit": ("c411" + "00" * 17, "too_large"),
    "message over the limit": ("00" * 65, "too_large"),
    "integer cut short as a key": ("81cd01", "truncated"),
    "byte string over the limit as a key": ("81c411" + "00" * 17 + "c0", "too_large"),
    "duplicate key, then a type byte never used": ("82a16101a161c1", "duplicate_key"),
    "array that fits the rest of the budget, beside others": "9699c1" + "00" * 20,
    "str16 for a string over the limit": "da0029" + "78" * 41,
    "bin16 for a byte string over the limit": "c50011" + "00" * 17,
    "array16 for an array over the budget": "dc000d" + "00" * 13,
    "array16 four deep": "919191dc0001c0",
    "head of a string cut short": ("d9", "truncated"),
    "string cut short, no UTF-8": ("a2ff", "truncated"),
    "float cut short": ("cb7ff00000", "truncated"),
}
"""Spelled in hex; ``bad_encoding`` unless named."""


def codec() -> dict:
    wrong = {
        n: each if isinstance(each, tuple) else (each, "bad_encoding")
        for n, each in INVALID.items()
    }
    return {
        "context": {"limits": asdict(LIMITS)},
        "vectors": [
            *(valid(name, encode(value), tagged(value)) for name, value in VALID.items()),
            *({"name": n, "input": spelled, "error": e} for n, (spelled, e) in wrong.items()),
        ],
    }


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
