"""Rows of an update, and its optimizer steps: figures, train-inference mismatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict

import torch
from transformers import PreTrainedModel

from node.learner.batches import Row, TrainingGroup, micro_batches
from node.learner.gradient_bound import Influence
from node.learner.logprobs import TokenScores
from node.learner.losses import Advantage, Counts, Loss, bounded
from node.learner.update_stats import UpdateStats
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
        capped = [completion.first(cap) for completion in group.completions]
        kept = [
            (completion, value)
            for completion, value in zip(capped, advantage(group.rewards), strict=True)
            if any(completion.trained) and (group.local or reads(value))
        ]
        if not kept:
            continue
        completions, advantages = zip(*kept, strict=True)
        counts = Counts(sum(sum(completion.trained) for completion in capped), len(capped), longest)
        share = loss.share(counts, len(groups))
        rows.append(
            Row(group.prompt_ids, completions, advantages, group.local, share, number, first)
        )
        first += len(kept)
    return rows


def by_local_group(
    values: Mapping[int, tuple[float, ...]], groups: Sequence[TrainingGroup], rows: Sequence[Row]
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Arrange values by local group and completion; empty where there are none."""
    first = {
        row.group: row.first
        for row in rows
        if row.local and len(row.completions) == len(groups[row.group].completions)
    }
    return tuple(
        tuple(values.get(first[number] + index, ()) for index in range(len(group.completions)))
        if number in first
        else ((),) * len(group.completions)
        for number, group in enumerate(groups)
        if group.local
    )


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of one optimizer step, with the shares of an update of these rows alone.

    ``groups`` counts the informative groups that the step stands for. ``weight`` is its part in the
    update's figures; all add up to 1.
    """

    rows: tuple[Row, ...]
    groups: float
    weight: float


def steps_of(rows: Sequence[Row], useful: int, groups_per_step: int) -> list[Step]:
    """Distribute an update's rows over steps of at least ``groups_per_step`` rows.

    0 means one step. As with mini-batches (PPO, arXiv 1707.06347, algorithm 1), more informative
    groups (``useful``) give more steps. Unlike in PPO, each step has its own proximal policy, so
    the clip limits further epochs and not the number of steps. Each step's loss is a mean over its
    share of all groups, so the steps' mean is the update's loss.
    """
    count = max(1, len(rows) // groups_per_step) if groups_per_step else 1
    if count == 1:
        return [Step(tuple(rows), useful, 1.0)]
    steps = []
    for number in range(count):
        step_rows = tuple(replace(row, share=row.share * count) for row in rows[number::count])
        weight = len(step_rows) / len(rows)
        steps.append(Step(step_rows, useful * weight, weight))
    return steps


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Results of a step's first pass, before the step and before clipping."""

    weight: float
    loss: float
    grad_norm: float
    influence: Influence


def with_figures(stats: UpdateStats, steps: Sequence[StepFigures]) -> UpdateStats:
    """Add what the steps found: mean loss and norm, maximum share of a peer's group."""
    total = sum(step.weight for step in steps)
    shares = [
        step.weight * step.influence.largest_share
        for step in steps
        if step.influence.largest_share is not None
    ]
    return replace(
        stats,
        loss=sum(step.weight * step.loss for step in steps) / total,
        grad_norm=sum(step.weight * step.grad_norm for step in steps) / total,
        largest_share=max(shares, default=None),
        groups_bounded=sum(step.influence.bounded for step in steps),
    )


class Trained(Protocol):
    """Fields of a :class:`node.policy.policy.Policy` that a learner needs."""

    model: PreTrainedModel
    device: torch.device
    pad_id: int
    context_length: int
    version: int


Newest = Callable[[], Sequence[TrainingGroup]]  # latest local completions, newest last

MOST_COMPLETIONS = 4  # A mismatch affects all tokens, so few are enough.


def tells(row: Row, version: int) -> bool:
    """Return whether the row shows the train-inference mismatch of ``version``."""
    return row.local and any(
        c.behaviour is not None and (c.versions is None or version in c.versions)
        for c in row.completions
    )


def newest_rows(groups: Sequence[TrainingGroup], trained: Trained, longest: int) -> list[Row]:
    """Return the newest completions with a token of the current policy version.

    ``groups`` has the oldest first; ``longest`` limits the tokens read per completion.
    """
    rows: list[Row] = []
    for group in reversed(groups):
        cap = max(0, min(longest, trained.context_length - len(group.prompt_ids)))
        for completion in reversed(group.completions):
            prefix = completion.first(cap)
            if prefix.behaviour is not None and trained.version in (prefix.versions or ()):
                rows.append(Row(group.prompt_ids, (prefix,), (0.0,), group.local))
    return rows[:MOST_COMPLETIONS]


@torch.no_grad()
def logprob_mismatch(
    trained: Trained, rows: Sequence[Row], scores: TokenScores, token_budget: int
) -> float | None:
    """Return the mean ``|cur - mu|`` over tokens of the current version, nats, or None.

    ``rows`` have one completion each. ``scores`` uses the engine's sampling temperature.
    """
    mismatches = []
    for batch in micro_batches(rows, token_budget, trained.pad_id, trained.device):
        cur = scores(batch, entropies=False).logprobs
        current = batch.mask & batch.known & (batch.versions == trained.version)
        mismatches.append(bounded(cur - batch.behaviour).abs()[current])
    combined = torch.cat(mismatches) if mismatches else torch.empty(0)
    return float(combined.mean()) if len(combined) else None


class Choices(TypedDict, total=False):
    """Learner settings from other sections of the configuration.

    ``temperature`` divides the logits, as in sampling. ``correction`` names an off-policy
    correction. For ``floor`` and ``decoupled`` see :class:`node.learner.off_policy.Weighting`, for
    ``peer_ratio`` :class:`node.learner.peer_bound.PeerBound`.
    """

    temperature: float
    correction: str
    correction_options: Mapping[str, Any]
    decoupled: bool
    floor: bool
    peer_ratio: float
