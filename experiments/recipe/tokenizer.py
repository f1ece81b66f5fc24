"""Tokenizers whose pieces are single characters and whole phrases of the questions.

A phrase costs one token, which keeps prompts short and rounds on the CPU fast. The variable parts
of a question and all answers are spelled in characters.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, cast

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "\ufffd"
CHARACTERS = "\n" + "".join(sorted(string.digits + string.ascii_letters + string.punctuation + " "))

# Constant text of the questions of each family.
PHRASES = (
    "\nAnswer:",
    "State the final answer to the following arithmetic problem: ",
    "Calculate ",
    "Spell this word backward (example: sun -> nus): ",
    "Your task is to count how many legs there are in total when given a list of animals.\n\n"
    "Now, how many legs are there in total if you have ",
    "Your task is to convert a number between two different bases.\n\n"
    "If the target base is > 10, use lowercase letters a-z for digits above 9.\n\n"
    "Now, convert the ",
    " number ",
    " to ",
    "binary",
    "base-",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
    "Find the Least Common Multiple (LCM) of these numbers: ",
)

# The same for the families with intermediate steps.
WORKING_PHRASES = (
    "\nAnswer:",
    "Add up ",
    ", two numbers at a time. Steps are written 2+3=5",
    "Climb from ",
    " to ",
    ". Every step doubles the number or adds 1 to 5. Write down every number",
    "Bring ",
    " down to ",
    ". Every step halves an even number or takes away 1, 3 or 7. Write down every number",
    "Pay ",
    " with coins of ",
    ", one at a time. Steps are written 7-5=2",
    "Wait from ",
    ". Every wait takes 5, 10, 30 or 60 minutes. Write down the time after each",
    "Walk from ",
    ", holes ",
    "none",
    ". Write down every square you step on, such as a1 a2 b2",
    *(f"0{digit}" for digit in range(10)),
    *map(str, range(10, 100)),
)

GAME_PHRASES = (
    "Guess from ",
    " to ",
    "higher",
    "lower",
    "no number",
    "At ",
    " open ",
    "Play ",
    "not free",
    "Compute ",
    "calc ",
    "Pull ",
    "paid",
    "nothing",
)


def words(phrases: Sequence[str], count: int) -> tuple[str, ...]:
    """Split the phrases into runs of ``count`` words, each word with the space after it."""
    runs: dict[str, None] = {}
    for phrase in phrases:
        pieces = phrase.replace(" ", " \0").split("\0")
        for start in range(0, len(pieces), count):
            runs["".join(pieces[start : start + count])] = None
    return tuple(run for run in runs if len(run) > 1)


def make_tokenizer(phrases: Sequence[str], context: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer of printable ASCII and these phrases that uses the fewest pieces.

    EOS ends an answer, and PAD is never trained on; text that spells one of them is not encoded as
    it. A character outside of ASCII becomes the replacement character. There is no BOS.

    Args:
        phrases: each becomes one token.
        context: context length of the model, in tokens.
    """
    # Equal scores make the best segmentation the shortest one.
    pieces = [(piece, -1.0) for piece in (UNKNOWN, *CHARACTERS, *phrases)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.decoder = decoders.Fuse()
    build: Any = PreTrainedTokenizerFast
    return cast(
        PreTrainedTokenizerFast,
        build(
            tokenizer_object=tokenizer,
            # Not among the pieces: the model would read them out of plain text.
            pad_token=PAD,
            eos_token=EOS,
            model_max_length=context,
            clean_up_tokenization_spaces=False,
        ),
    )
