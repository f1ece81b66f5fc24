"""From an update's groups to the rows that its forward passes read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from node.learner.advantage import Advantage
from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.loss import Counts, Loss
from node.learner.turn_credit import TurnCredit
from node.learner.turn_entropy import undecided
from node.learner.turns import turns_of
from swarm.groups import informative


def rows_of(
    groups: Sequence[TrainingGroup],
    loss: Loss,
    advantage: Advantage,
    reads: Callable[[float], bool],
    *,
    credit: TurnCredit,
    turns_kept: float,
    longest: int,
    context_length: int,
) -> list[Row]:
    """A row for each informative group of which a trained token is read.

    Every group counts in the mean over groups, those of equal rewards too, whose gradient is zero:
    an update in which little is to be learned is a small one.

    Args:
        reads: whether an external completion of that advantage is; one that is not counts in its
            group's mean all the same, and so does a turn that is left out.
        turns_kept: share of a group's turns that are trained on, see :func:`undecided`.
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
        gains = advantage(group.rewards)
        credits = credit(group, gains)
        kept = undecided(done, turns_kept)
        read = [
            place
            for place, (completion, gain) in enumerate(zip(kept, gains, strict=True))
            if any(completion.trained) and (group.own or reads(gain))
        ]
        if read:
            row = Row(
                group.prompt_ids,
                tuple(kept[place] for place in read),
                tuple(gains[place] for place in read),
                group.own,
                loss.share(_counts(done, longest, by_turn=bool(credits)), len(groups)),
                number,
                first,
                tuple(credits[place][:cap] for place in read) if credits else (),
            )
            rows.append(row)
            first += len(read)
    return rows


def _counts(done: Sequence[TrainingCompletion], longest: int, *, by_turn: bool) -> Counts:
    tokens = sum(sum(completion.trained) for completion in done)
    turns = sum(len(turns_of(completion.trained)) for completion in done)
    return Counts(tokens, len(done), turns if by_turn else len(done), longest)


def by_own_group(
    told: Mapping[int, tuple[float, ...]], groups: Sequence[TrainingGroup], rows: Sequence[Row]
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """What is told of completions by their numbers, for each own group and each completion of it;
    empty where nothing is, or where not all of a group was read."""
    first = {
        row.group: row.first
        for row in rows
        if row.own and len(row.completions) == len(groups[row.group].completions)
    }
    return tuple(
        tuple(told.get(first[number] + place, ()) for place in range(len(group.completions)))
        if number in first
        else ((),) * len(group.completions)
        for number, group in enumerate(groups)
        if group.own
    )
