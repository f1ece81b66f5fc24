"""Training groups of samples, and micro-batches of them without a learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from node.engines.engine import Sample
from node.learner.batches import (
    MicroBatch,
    Row,
    TrainingCompletion,
    TrainingGroup,
    micro_batches,
)
from node.learner.losses import Standardised
from node.policy.policy import Policy

UNBOUNDED = 1 << 40


def training_groups(
    prompts: Sequence[Sequence[int]], samples: Sequence[Sequence[Sample]], local: Sequence[bool]
) -> list[TrainingGroup]:
    """Return groups of what was sampled, with every other completion right.

    ``local`` says which groups are local; the others are those of a peer.
    """
    groups = []
    for prompt, group, is_local in zip(prompts, samples, local, strict=True):
        done = [TrainingCompletion.local(sample.tokens) for sample in group]
        if not is_local:
            done = [replace(each, versions=None) for each in done]
        rewards = tuple(float(n % 2) for n in range(len(done)))
        groups.append(TrainingGroup(tuple(prompt), tuple(done), rewards, is_local))
    return groups


def rows_of(groups: Sequence[TrainingGroup]) -> list[Row]:
    """A row for each group, its completions behind one prompt."""
    return [
        Row(g.prompt_ids, g.completions, Standardised()(g.rewards), local=g.local) for g in groups
    ]


def packed(rows: Sequence[Row], policy: Policy, budget: int = UNBOUNDED) -> list[MicroBatch]:
    """Rows as they are, whatever that costs: a prompt is read once for all its completions."""
    return list(micro_batches(rows, budget, policy.pad_id, policy.device))


def padded(rows: Sequence[Row], policy: Policy, budget: int = UNBOUNDED) -> list[MicroBatch]:
    """A padded row for every completion, prompt included."""
    return packed([part for row in rows for part in row.parts()], policy, budget)
