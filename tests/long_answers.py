"""Groups of long answers, as real tokens and text weigh."""

import random

from protocol.rollout import Batch, Completion, Finish, Group, Segment, Tokens, Writer

WORDS = 150_000
"""In the vocabulary, each a blank and four letters."""


def prose(chance: random.Random) -> tuple[int, str]:
    """A word's id and text; few words are most of a text, as in any language."""
    number = int(WORDS ** chance.random())
    letters = "".join(chr(97 + (number * 7 // 26**n) % 26) for n in range(4))
    return number, f" {letters}"


def long_group(tokens: int, answers: int, index: int = 0) -> Group:
    """A group of the family ``parity``: answers of so many tokens, of even and of odd length."""
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
