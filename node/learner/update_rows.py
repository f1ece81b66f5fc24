"""Rows of an update from its groups, with credit and selection of turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.losses import Advantage, Counts, Loss, Terms
from swarm.groups import informative


def turns_of(trained: Sequence[bool]) -> list[slice]:
    """Return the policy's turns in order: the runs of tokens that it sampled.

    An environment's answer has at least one token, so turns are never adjacent.
    """
    found, begin = [], 0
    for ours, run in groupby(trained):
        end = begin + sum(1 for _ in run)
        if ours:
            found.append(slice(begin, end))
        begin = end
    return found


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """``A_it = (1 - c) A(r)_i + c A(G_t)_i`` with ``G_it = gamma^(T_i - t) r_i``.

    Turn ``t`` of trajectory ``i``, of ``T_i`` turns, is compared with the same turn of the group's
    other trajectories; without others ``A`` is 0. UI-S1 (arXiv:2509.11543) adds advantages of
    episodes and steps: ``c`` = 1/2 up to a factor. Its returns add up rewards of steps; here only
    the last reward is known. ``share`` is ``c``, ``discount`` is ``gamma``; below 1, shorter
    trajectories of equal reward did better.
    """

    advantage: Advantage
    share: float
    discount: float

    def __call__(self, group: TrainingGroup, whole: Sequence[float]) -> list[tuple[float, ...]]:
        """Return advantages by token for each completion; empty if no turn has its own.

        They are 0 where the policy did not sample the token. A peer's turn is not imitated if its
        whole trajectory (advantage in ``whole``) is not: it was not checked for that.
        """
        turns = [turns_of(completion.trained) for completion in group.completions]
        if not self.share or max(map(len, turns)) < 2:
            return []
        gains = self._gains(group.rewards, list(map(len, turns)))
        lines = []
        for completion, places, own, parts in zip(
            group.completions, turns, whole, gains, strict=True
        ):
            most = math.inf if group.own or own > 0 else 0.0
            line = [0.0] * len(completion.ids)
            for place, gain in zip(places, parts, strict=True):
                credit = min(most, (1 - self.share) * own + self.share * gain)
                line[place] = [credit] * (place.stop - place.start)
            lines.append(tuple(line))
        return lines

    def _gains(self, rewards: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
        gains: list[list[float]] = [[] for _ in rewards]
        for turn in range(1, max(lengths) + 1):
            there = [number for number, length in enumerate(lengths) if length >= turn]
            returns = [self.discount ** (lengths[n] - turn) * rewards[n] for n in there]
            for number, gain in zip(there, self.advantage(returns), strict=True):
                gains[number].append(gain)
        return gains


def by_turn(terms: Terms, credits: Tensor | None) -> Terms:
    """Replace each completion's row by one row per turn, if ``credits`` are given.

    A loss with a ratio per sequence then has one per turn. Credits are float32 ``[B, T]``, constant
    within a turn.
    """
    if credits is None:
        return terms
    mask = terms.mask
    begins = mask.clone()
    begins[:, 1:] &= ~mask[:, :-1]
    row, begin = begins.nonzero(as_tuple=True)
    number = begins.cumsum(-1)
    return Terms(
        terms.cur[row],
        terms.prox[row],
        credits[row, begin],
        mask[row] & (number[row] == number[row, begin][:, None]),
        terms.weights[row],
        terms.shares[row],
    )


def rows_of(
    groups: Sequence[TrainingGroup],
    loss: Loss,
    advantage: Advantage,
    reads: Callable[[float], bool],
    *,
    credit: TurnCredit,
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
        credits = credit(group, gains)
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
            loss.share(_counts(done, longest, by_turn=bool(credits)), len(groups)),
            number,
            first,
            tuple(credits[place][:cap] for place in places) if credits else (),
        )
        rows.append(row)
        first += len(places)
    return rows


def _counts(done: Sequence[TrainingCompletion], longest: int, *, by_turn: bool) -> Counts:
    tokens = sum(sum(completion.trained) for completion in done)
    turns = sum(len(turns_of(completion.trained)) for completion in done)
    return Counts(tokens, len(done), turns if by_turn else len(done), longest)


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
