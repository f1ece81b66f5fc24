"""Which of an update's groups each of its optimizer steps reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from node.learner.batches import Row
from node.learner.influence import Influence


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step of an update reads.

    Attributes:
        rows: with the shares that they would have in an update of these alone.
        groups: informative groups that the step stands for.
        weight: of the step in figures of the whole update; those of all steps add up to 1.
    """

    rows: tuple[Row, ...]
    groups: float
    weight: float


def steps_of(rows: Sequence[Row], useful: int, groups_per_step: int) -> list[Step]:
    """Deal an update's rows to steps of at least ``groups_per_step`` each, one where that is 0.

    As mini-batches do (PPO, arXiv 1707.06347, algorithm 1): the more there is to learn from, the
    further an update goes, at the noise in each step that a small update has. Unlike them, each
    step has a proximal policy of its own, the one that it begins with: the clip bounds how far
    further epochs go, and not how many steps. The loss of every step is a mean over its share of
    all groups, so that the steps' mean is the update's.

    Args:
        rows: one for each informative group of which a trained token is read.
        useful: informative groups.
    """
    count = max(1, len(rows) // groups_per_step) if groups_per_step else 1
    if count == 1:
        return [Step(tuple(rows), useful, 1.0)]
    steps = []
    for number in range(count):
        dealt = tuple(replace(row, share=row.share * count) for row in rows[number::count])
        weight = len(dealt) / len(rows)
        steps.append(Step(dealt, useful * weight, weight))
    return steps


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step's first pass found.

    Attributes:
        weight: see :class:`Step`.
        loss, grad_norm: before the step, and before clipping.
    """

    weight: float
    loss: float
    grad_norm: float
    influence: Influence


class UpdateFigures(TypedDict):
    """The same of a whole update; see :class:`node.learner.update_stats.UpdateStats`."""

    loss: float
    grad_norm: float
    largest_share: float | None
    groups_bounded: int


def together(steps: Sequence[StepFigures]) -> UpdateFigures:
    """Figures of all steps: loss and norm at the mean, an external group's largest share of all."""
    whole = sum(step.weight for step in steps)
    shares = [
        step.weight * step.influence.largest_share
        for step in steps
        if step.influence.largest_share is not None
    ]
    return {
        "loss": sum(step.weight * step.loss for step in steps) / whole,
        "grad_norm": sum(step.weight * step.grad_norm for step in steps) / whole,
        "largest_share": max(shares, default=None),
        "groups_bounded": sum(step.influence.bounded for step in steps),
    }
