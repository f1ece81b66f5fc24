"""Advantages of the turns of a trajectory, beside that of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from node.learner.advantage import Advantage
from node.learner.batches import TrainingGroup
from node.learner.loss import Terms
from node.learner.turns import turns_of


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
