"""Rows of an update from its groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.losses import Advantage, Counts, Loss
from swarm.groups import informative


def rows_of(
    groups: Sequence[TrainingGroup],
    loss: Loss,
    advantage: Advantage,
    reads: Callable[[float], bool],
    *,
    longest: int,
    context_length: int,
) -> list[Row]:
    """Return a row for each informative group with a trained token.

    Every group counts in the mean over groups, also those of equal rewards. ``reads`` selects
    peers' completions by advantage; omitted ones still count in their group's mean. ``longest`` is
    the maximum of trained tokens per completion.
    """
    rows: list[Row] = []
    first = 0
    for number, group in enumerate(groups):
        if not informative(group.rewards):
            continue
        cap = max(0, min(longest, context_length - len(group.prompt_ids)))
        done = [completion.first(cap) for completion in group.completions]
        gains = advantage(group.rewards)
        places = [
            place
            for place, (completion, gain) in enumerate(zip(done, gains, strict=True))
            if any(completion.trained) and (group.own or reads(gain))
        ]
        if not places:
            continue
        row = Row(
            group.prompt_ids,
            tuple(done[place] for place in places),
            tuple(gains[place] for place in places),
            group.own,
            loss.share(_counts(done, longest), len(groups)),
            number,
            first,
        )
        rows.append(row)
        first += len(places)
    return rows


def _counts(done: Sequence[TrainingCompletion], longest: int) -> Counts:
    return Counts(sum(sum(completion.trained) for completion in done), len(done), longest)


def by_own_group(
    values: Mapping[int, tuple[float, ...]], groups: Sequence[TrainingGroup], rows: Sequence[Row]
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Arrange values by local group and completion; empty where there are none."""
    first = {
        row.group: row.first
        for row in rows
        if row.own and len(row.completions) == len(groups[row.group].completions)
    }
    return tuple(
        tuple(values.get(first[number] + place, ()) for place in range(len(group.completions)))
        if number in first
        else ((),) * len(group.completions)
        for number, group in enumerate(groups)
        if group.own
    )
