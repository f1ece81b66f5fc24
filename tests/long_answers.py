"""Groups of long answers with realistic token and text sizes."""

import random

from protocol.rollout import Batch, Completion, Finish, Group, Segment, Tokens, Writer

WORDS = 150_000
"""Vocabulary size; each word is a space and four letters."""


def prose(chance: random.Random) -> tuple[int, str]:
    """Return a word's id and text; a few words are frequent, as in real text."""
    number = int(WORDS ** chance.random())
    letters = "".join(chr(97 + (number * 7 // 26**n) % 26) for n in range(4))
    return number, f" {letters}"


def long_group(tokens: int, answers: int, index: int = 0) -> Group:
    """Return a group of the family ``parity`` whose answers have this many tokens."""
    chance = random.Random(index)
    return Group("parity", 0, 0, index, tuple(_answer(tokens, n, chance) for n in range(answers)))


def batch(*groups: Group) -> Batch:
    return Batch(1, 0, 1_700_000_000.0, "m", b"\x01" * 32, 1.0, 1 << 14, groups)


def _answer(tokens: int, number: int, chance: random.Random) -> Completion:
    ids, words = zip(*(prose(chance) for _ in range(tokens)), strict=True)
    text = "".join(words)
    if len(text) % 2 != number % 2:
        text += "."
    told = Tokens(ids, tuple(-chance.expovariate(1.0) for _ in ids), (number,) * tokens)
    segment = Segment(Writer.POLICY, text, told)
    return Completion((segment,), float(len(text) % 2 == 0), Finish.LENGTH)
