"""From an update's groups to the rows that its forward passes read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from torch import Tensor

from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.losses import Advantage, Counts, Loss, Terms
from swarm.groups import informative


def turns_of(trained: Sequence[bool]) -> list[slice]:
    """The policy's turns, in their order: the runs of tokens that it wrote.

    Policy and environment write by turns, and what an environment answers is a token at least, so
    that no two turns lie side by side. An answer is one turn.

    Args:
        trained: of a completion, per token.
    """
    found, begin = [], 0
    for ours, run in groupby(trained):
        end = begin + sum(1 for _ in run)
        if ours:
            found.append(slice(begin, end))
        begin = end
    return found


class TurnCredit:
    """``A_it = (1 - c) A(r)_i + c A(G_t)_i`` with ``G_it = gamma^(T_i - t) r_i``.

    Turn ``t`` of trajectory ``i``, of ``T_i`` turns, is measured against the same turn of the
    group's other trajectories, as far as these have one. UI-S1 (arXiv:2509.11543) adds advantages
    of episodes and of steps: that is ``c`` = 1/2, up to a factor, with which answers of one turn
    keep their scale. Its returns add up rewards of steps; only the last one is told here. With
    ``gamma`` below 1, of two that end alike the shorter one did better.

    Args:
        advantage: ``A``; of a turn that only one trajectory has it is 0.
        share: ``c``. 0: every token has its trajectory's advantage.
        discount: ``gamma``.
    """

    def __init__(self, advantage: Advantage, share: float, discount: float) -> None:
        self._advantage = advantage
        self._share = share
        self._discount = discount

    def __call__(self, group: TrainingGroup, whole: Sequence[float]) -> list[tuple[float, ...]]:
        """Of each completion by token, 0 where the policy did not write it; empty where no turn
        has an advantage of its own.

        What another node wrote is not imitated in a turn of a trajectory that, as a whole, is not:
        such text was not looked at for that.

        Args:
            whole: advantages of the completions.
        """
        turns = [turns_of(completion.trained) for completion in group.completions]
        if not self._share or max(map(len, turns)) < 2:
            return []
        gains = self._gains(group.rewards, list(map(len, turns)))
        lines = []
        for completion, places, own, parts in zip(
            group.completions, turns, whole, gains, strict=True
        ):
            most = math.inf if group.own or own > 0 else 0.0
            line = [0.0] * len(completion.ids)
            for place, gain in zip(places, parts, strict=True):
                credit = min(most, (1 - self._share) * own + self._share * gain)
                line[place] = [credit] * (place.stop - place.start)
            lines.append(tuple(line))
        return lines

    def _gains(self, rewards: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
        """``A(G_t)_i``, a list of turns for each trajectory of so many."""
        gains: list[list[float]] = [[] for _ in rewards]
        for turn in range(1, max(lengths) + 1):
            there = [number for number, length in enumerate(lengths) if length >= turn]
            returns = [self._discount ** (lengths[n] - turn) * rewards[n] for n in there]
            for number, gain in zip(there, self._advantage(returns), strict=True):
                gains[number].append(gain)
        return gains


def by_turn(terms: Terms, credits: Tensor | None) -> Terms:
    """A row for each turn in place of each completion, with its own advantage; the same terms where
    no turn has one.

    A loss sums over tokens, so that nothing else changes; one with a ratio a sequence has one a
    turn.

    Args:
        credits: float32 ``[B, T]``, advantages by token, the same all through a turn.
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


ROUNDING = 1e-9


def undecided(
    completions: Sequence[TrainingCompletion], share: float
) -> Sequence[TrainingCompletion]:
    """A group's completions with those turns masked in which their writer was surest.

    Kept is the ``share`` of the turns, rounded up, with the highest mean entropy of their tokens,
    of equal ones the earlier (DART, arXiv:2509.23866, which keeps 0.8). All that is known of a
    token is ``mu``, its log-prob where it was sampled: the mean of ``-mu`` over a turn stands for
    its entropy, which it is at the mean. A turn of which ``mu`` is not known is kept, and so a
    claim of another node's leaves a turn out and never brings one in. Answers of one turn are read
    as ever.

    A masked turn is context for what follows. What a group's sum is divided by stays what it would
    be with all turns (:class:`node.learner.losses.Counts`).
    """
    turns = [turns_of(completion.trained) for completion in completions]
    if share == 1.0 or max(map(len, turns)) < 2:
        return completions
    known = [
        (-fmean(completion.behaviour[place]), number, place)
        for number, (completion, places) in enumerate(zip(completions, turns, strict=True))
        if completion.behaviour is not None
        for place in places
    ]
    known.sort(key=lambda turn: -turn[0])
    told = [list(completion.trained) for completion in completions]
    for _, number, place in known[math.ceil(share * len(known) - ROUNDING) :]:
        told[number][place] = [False] * (place.stop - place.start)
    return [replace(c, trained=tuple(line)) for c, line in zip(completions, told, strict=True)]


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
