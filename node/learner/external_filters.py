"""What is not learned from in an external group, however right it is.

Text can be right and still be there for what stands beside the answer: a phrase that the reader is
to pick up (arXiv:2511.09780). So completions that their group's rewards would have this node
imitate are looked at, and only those: what is wrong is not imitated, and weighed by its likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.manifest import Extract

MIN_SCORED = 8
"""Trained tokens below which a likelihood tells nothing (GRAIL's sampling check)."""
FLOORS = ((0.5, -3.5), (0.1, -9.0))
"""Quantiles of a completion's log-probs, nats a token, and what they must not fall below."""
MIN_REPEATING = 24
"""Tokens below which repetition is ordinary."""
GRAM = 4
MOST_REPEATED = 0.6
"""Share of runs of four tokens that occurred before in the same completion."""
MOST_TRAILING = 16
"""Characters behind the answer."""
MIN_COPIED = 48
"""Characters below which equal texts of several authors are no wonder."""
MIN_LENGTHS = 32
"""Own completions of a task below which their lengths tell nothing."""
LENGTHS = 2.0
SPARE = 8
"""Tokens; a budget is twice the own completions' long ones, and so many more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion to be imitated.

    Attributes:
        text: what its author wrote.
        ids: the same in this node's tokens, before it is cut.
        extract: how the answer is found in it.
        budget: tokens that it may take; None where that is not known.
        elsewhere: whether another author has sent the same text.
    """

    text: str
    ids: Sequence[int]
    extract: Extract
    budget: int | None
    elsewhere: bool


def overlong(answer: Answer) -> bool:
    """Longer than this node's own completions of the task by far."""
    return answer.budget is not None and len(answer.ids) > answer.budget


def repeating(answer: Answer) -> bool:
    """Running in circles."""
    ids = answer.ids
    if len(ids) < MIN_REPEATING:
        return False
    grams = [tuple(ids[n : n + GRAM]) for n in range(len(ids) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) > MOST_REPEATED


def trailing(answer: Answer) -> bool:
    """Going on behind the answer."""
    match answer.extract:
        case "answer_tag":
            behind = answer.text.rpartition("</answer>")[2]
        case "boxed":
            behind = answer.text.rpartition("\\boxed{")[2].partition("}")[2]
        case "text":
            return False
    return len(behind.strip()) > MOST_TRAILING


def copied(answer: Answer) -> bool:
    """Another author's text, long enough that two do not write it by chance."""
    return answer.elsewhere and len(answer.text) >= MIN_COPIED


FILTERS: dict[str, Callable[[Answer], bool]] = {
    "overlong": overlong,
    "repeating": repeating,
    "trailing": trailing,
    "copied": copied,
}
"""Those that look at a completion before the learner sees it; :func:`unlikely` is the learner's."""


def unlikely(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Completions that this policy finds less likely than any model's honest text; bool ``[B]``.

    A median and a low quantile of the tokens' log-probs, so that single surprises, which there is
    most to learn from, do not count: the form of GRAIL's sampling check, with floors for authors
    who sampled from another model.

    Args:
        logprobs: float32 ``[B, T]``, under this policy.
        mask: bool ``[B, T]``, true on trained tokens.
    """
    lengths = mask.sum(-1)
    ordered = torch.where(mask, logprobs, torch.inf).sort(-1).values
    found = torch.zeros_like(lengths, dtype=torch.bool)
    for quantile, floor in FLOORS:
        place = ((lengths - 1).clamp(min=0) * quantile).long()[:, None]
        found |= ordered.gather(1, place).squeeze(1) < floor
    return found & (lengths >= MIN_SCORED)


def budget(lengths: Sequence[int]) -> int | None:
    """Tokens that a right answer may take, by those of own completions; None for too few."""
    if len(lengths) < MIN_LENGTHS:
        return None
    long = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    return int(LENGTHS * long) + SPARE
