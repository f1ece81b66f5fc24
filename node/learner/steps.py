"""Which of an update's groups each of its optimizer steps reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypedDict

import torch
from transformers import PreTrainedModel

from node.learner.batches import Row, TrainingGroup, micro_batches
from node.learner.gradient_bound import Influence
from node.learner.logprobs import TokenScores


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


class Trained(Protocol):
    """What a learner needs of a :class:`node.policy.policy.Policy`."""

    model: PreTrainedModel
    device: torch.device
    pad_id: int
    context_length: int
    version: int


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


class Choices(TypedDict, total=False):
    """What a learner is told beside its own section of the configuration.

    Attributes:
        temperature: of the distribution that completions are sampled from; divides the logits.
        correction: name of a rule in ``corrections/``, for what this policy did not write.
        correction_options: its settings.
        floor: external rollouts that are :func:`node.learner.off_policy.unlikely` are not
            imitated.
        decoupled: own rollouts may be of earlier versions, and are weighed by
            :func:`~node.learner.off_policy.decoupled_weights`, whatever the correction.
    """

    temperature: float
    correction: str
    correction_options: Mapping[str, Any]
    decoupled: bool
    floor: bool
