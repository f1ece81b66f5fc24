"""From an update's groups to the rows that its forward passes read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from node.learner.advantage import Advantage
from node.learner.batches import Row, TrainingGroup
from node.learner.loss import Counts, Loss
from swarm.pooled_group import informative


def rows_of(
    groups: Sequence[TrainingGroup],
    loss: Loss,
    advantage: Advantage,
    reads: Callable[[float], bool],
    *,
    longest: int,
    context_length: int,
) -> list[Row]:
    """A row for each informative group of which a trained token is read.

    Every group counts in the mean over groups, those of equal rewards too, whose gradient is zero:
    an update in which little is to be learned is a small one.

    Args:
        reads: whether an external completion of that advantage is; one that is not counts in its
            group's mean all the same.
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
        counts = [sum(completion.trained) for completion in done]
        read = [
            (completion, gain)
            for completion, gain, count in zip(done, advantage(group.rewards), counts, strict=True)
            if count and (group.own or reads(gain))
        ]
        if read:
            share = loss.share(Counts(sum(counts), len(done), longest), len(groups))
            kept, gains = zip(*read, strict=True)
            rows.append(Row(group.prompt_ids, kept, gains, group.own, share, number, first))
            first += len(read)
    return rows


def by_own_group(
    told: Mapping[int, tuple[float, ...]], groups: Sequence[TrainingGroup], rows: Sequence[Row]
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """What is told of completions by their numbers, for each own group and each completion of it;
    empty where nothing is."""
    first = {row.group: row.first for row in rows if row.own}
    return tuple(
        tuple(told.get(first[number] + place, ()) for place in range(len(group.completions)))
        if number in first
        else ((),) * len(group.completions)
        for number, group in enumerate(groups)
        if group.own
    )
