"""Groups laid out in micro-batches without a learner."""

from __future__ import annotations

from collections.abc import Sequence

from node.learner.batches import MicroBatch, Row, TrainingGroup, micro_batches
from node.learner.losses import Standardised
from node.policy.policy import Policy

UNBOUNDED = 1 << 40


def rows_of(groups: Sequence[TrainingGroup]) -> list[Row]:
    """A row for each group, its completions behind one prompt."""
    return [Row(g.prompt_ids, g.completions, Standardised()(g.rewards), own=g.own) for g in groups]


def packed(rows: Sequence[Row], policy: Policy, budget: int = UNBOUNDED) -> list[MicroBatch]:
    """Rows as they are, whatever that costs: a prompt is read once for all its completions."""
    return list(micro_batches(rows, budget, policy.pad_id, policy.device))


def padded(rows: Sequence[Row], policy: Policy, budget: int = UNBOUNDED) -> list[MicroBatch]:
    """A padded row for every completion, prompt included."""
    return packed([part for row in rows for part in row.parts()], policy, budget)
