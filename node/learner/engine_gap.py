"""How far an engine's log-probs are from the learner's at equal weights, on text of any update.

An update tells it of those of its own tokens that the version which is updated wrote. Where the
engine writes beside the learner there may be none: what an update takes is of earlier versions, and
what the version writes is taken when the weights are others. So the engine's newest completions are
read just before the first step, when the weights are still those that it has had all along.

It costs a forward pass over at most ``MOST_COMPLETIONS``, no gradient and no copy of the weights.
On a CPU that is 3 to 6 % of an update of 4 to 8 groups of 8 completions of 64 tokens with
``tiny-wide``, and 3 % of the rounds of ``tiny`` under ``overlap``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch

from node.learner.batches import Row, TrainingGroup, micro_batches
from node.learner.logprobs import TokenScores
from node.learner.trained import Trained

Newest = Callable[[], Sequence[TrainingGroup]]
"""Own completions that came last, the newest at the end, with the versions that wrote them."""

MOST_COMPLETIONS = 4
"""An engine that is off is so everywhere: few tokens show it."""


def tells(row: Row, version: int) -> bool:
    """Whether an update that reads the row learns from it how far the engine is off."""
    return row.own and any(
        c.behaviour is not None and not c.replayed and (c.versions is None or version in c.versions)
        for c in row.completions
    )


def newest_rows(groups: Sequence[TrainingGroup], trained: Trained, longest: int) -> list[Row]:
    """Completions with a token of the policy's present version, the newest ones.

    Args:
        groups: the oldest first; what they earned does not count.
        longest: tokens of a completion that are read at most.
    """
    return list(islice(_rows(groups, trained, longest), MOST_COMPLETIONS))


@torch.no_grad()
def engine_gap(
    trained: Trained, rows: Sequence[Row], scores: TokenScores, token_budget: int
) -> float | None:
    """Mean ``|cur - mu|`` over the rows' tokens of the present version, nats; None of none.

    Args:
        rows: with a completion each.
        scores: of the policy's model, at the temperature that the engine samples at.
        token_budget: most tokens of a forward pass.
    """
    gaps = []
    for batch in micro_batches(rows, token_budget, trained.pad_id, trained.device):
        cur = scores(batch, entropies=False).logprobs
        told = batch.mask & batch.known & (batch.versions == trained.version)
        gaps.append((cur - batch.behaviour).abs()[told])
    together = torch.cat(gaps) if gaps else torch.empty(0)
    return float(together.mean()) if len(together) else None


def _rows(groups: Sequence[TrainingGroup], trained: Trained, longest: int) -> Iterator[Row]:
    for group in reversed(groups):
        cap = min(longest, trained.context_length - len(group.prompt_ids))
        for completion in reversed(group.completions):
            read = completion.first(max(0, cap))
            if read.behaviour is not None and trained.version in (read.versions or ()):
                yield Row(group.prompt_ids, (read,), (0.0,), group.own)
