"""What the learner trains on, and how it is laid out in padded micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainingCompletion:
    """One completion in the learner's own vocabulary.

    Attributes:
        ids: token ids, the end-of-sequence token included where the completion stopped by itself.
        trained: per token, whether the policy wrote it (an environment's tokens are masked).
        behaviour: per token, its log-prob under the policy that sampled it (read where trained);
            None where unknown.
    """

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    behaviour: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.trained)}
        if self.behaviour is not None:
            lengths.add(len(self.behaviour))
        if len(lengths) != 1:
            raise ValueError(f"ids, trained and behaviour differ in length: {sorted(lengths)}")

    def first(self, count: int) -> TrainingCompletion:
        """The first ``count`` tokens."""
        if len(self.ids) <= count:
            return self
        behaviour = None if self.behaviour is None else self.behaviour[:count]
        return TrainingCompletion(self.ids[:count], self.trained[:count], behaviour)


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """One task's prompt, its completions and their rewards; ``own`` where this node wrote them."""

    prompt_ids: tuple[int, ...]
    completions: tuple[TrainingCompletion, ...]
    rewards: tuple[float, ...]
    own: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One completion with its advantage, ready to be padded."""

    prompt_ids: tuple[int, ...]
    completion: TrainingCompletion
    advantage: float
    own: bool

    @property
    def length(self) -> int:
        """Prompt and completion, tokens."""
        return len(self.prompt_ids) + len(self.completion.ids)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Right-padded rows. ``T`` counts predicted positions: the last ``T`` of ``L - 1``.

    Attributes:
        input_ids: int64 ``[B, L]``, prompt then completion then padding.
        targets: int64 ``[B, T]``, the ids predicted.
        mask: bool ``[B, T]``, the trained tokens.
        behaviour: float32 ``[B, T]``, mu; zero where unknown.
        known: bool ``[B, 1]``, rows whose mu is known.
        own: bool ``[B, 1]``, rows this node wrote.
        advantages: float32 ``[B]``.
    """

    input_ids: Tensor
    targets: Tensor
    mask: Tensor
    behaviour: Tensor
    known: Tensor
    own: Tensor
    advantages: Tensor


def micro_batches(
    rows: Sequence[Row], token_budget: int, pad_id: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Lay rows out, of similar length together, so that ``B * L`` stays within the budget.

    A row longer than the budget gets a micro-batch of its own.
    """
    pending: list[Row] = []
    for row in sorted(rows, key=lambda row: row.length):
        if pending and (len(pending) + 1) * row.length > token_budget:
            yield _collate(pending, pad_id, device)
            pending = []
        pending.append(row)
    if pending:
        yield _collate(pending, pad_id, device)


def _collate(rows: Sequence[Row], pad_id: int, device: torch.device) -> MicroBatch:
    longest = max(row.length for row in rows)
    first = min(len(row.prompt_ids) for row in rows)
    ids: list[list[int]] = []
    mask: list[list[bool]] = []
    behaviour: list[list[float]] = []
    for row in rows:
        done, prompt = row.completion, len(row.prompt_ids)
        tail = longest - row.length
        ids.append([*row.prompt_ids, *done.ids, *[pad_id] * tail])
        mask.append([*[False] * (prompt - first), *done.trained, *[False] * tail])
        mu = done.behaviour or (0.0,) * len(done.ids)
        behaviour.append([*[0.0] * (prompt - first), *mu, *[0.0] * tail])
    input_ids = torch.tensor(ids, device=device)
    return MicroBatch(
        input_ids=input_ids,
        targets=input_ids[:, first:],
        mask=torch.tensor(mask, device=device),
        behaviour=torch.tensor(behaviour, dtype=torch.float32, device=device),
        known=torch.tensor([[r.completion.behaviour is not None] for r in rows], device=device),
        own=torch.tensor([[r.own] for r in rows], device=device),
        advantages=torch.tensor([r.advantage for r in rows], dtype=torch.float32, device=device),
    )
