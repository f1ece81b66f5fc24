"""From an update's groups to the rows that its forward passes read."""

from __future__ import annotations

from collections.abc import Sequence

from node.learner.advantage import Advantage
from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.loss import Counts, Loss
from swarm.pooled_group import informative


def rows_of(
    groups: Sequence[TrainingGroup],
    loss: Loss,
    advantage: Advantage,
    *,
    longest: int,
    context_length: int,
) -> list[Row]:
    """A row for each informative group that has a trained token.

    Every group counts in the mean over groups, those of equal rewards too, whose gradient is zero:
    an update in which little is to be learned is a small one.

    Args:
        longest: tokens of a completion that are trained on at most.
        context_length: of the policy, tokens.
    """
    rows: list[Row] = []
    first = 0
    for number, group in enumerate(groups):
        if not informative(group.rewards):
            continue
        cap = max(0, min(longest, context_length - len(group.prompt_ids)))
        done = [completion.first(cap) for completion in group.completions]
        if tokens := sum(sum(completion.trained) for completion in done):
            share = loss.share(Counts(tokens, len(done), longest), len(groups))
            rows.append(_row(group, done, advantage(group.rewards), share, number, first))
            first += len(rows[-1].completions)
    return rows


def _row(
    group: TrainingGroup,
    done: Sequence[TrainingCompletion],
    advantages: Sequence[float],
    share: float,
    number: int,
    first: int,
) -> Row:
    """The completions of a group that have a trained token."""
    kept = [each for each in zip(done, advantages, strict=True) if any(each[0].trained)]
    kept_done, kept_advantages = zip(*kept, strict=True)
    return Row(group.prompt_ids, kept_done, kept_advantages, group.own, share, number, first)
