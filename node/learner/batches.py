"""Training groups and their layout in rows and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.policy.fast_layers import Unpacking
from protocol.rollout import Tokens

CHEAP_PADDING = 256  # Tokens that take less time than the fixed cost of a pass.
COPY_WEIGHT = 0.2  # Share of a token's activations that a copy for attention takes, at most.


@dataclass(frozen=True, slots=True)
class TrainingCompletion:
    """One completion in the learner's vocabulary, with values per token."""

    ids: tuple[int, ...]  # with the end-of-sequence token if the completion ended with it
    trained: tuple[bool, ...]  # whether the policy sampled the token, not the environment
    behaviour: tuple[float, ...] | None = None  # log-probs at sampling; None if unknown
    versions: tuple[int, ...] | None = None  # of this node's policy; None for another node's
    reference: tuple[float, ...] | None = None  # log-probs of the reference model, if needed
    hidden: bool = False  # whether its reward depends on what its writer could not observe

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.trained)}
        optional = self.behaviour, self.versions, self.reference
        lengths |= {len(each) for each in optional if each is not None}
        if len(lengths) != 1:
            fields = "ids, trained, behaviour, versions and reference"
            raise ValueError(f"{fields} differ in length: {sorted(lengths)}")

    @classmethod
    def local(cls, tokens: Tokens) -> TrainingCompletion:
        """Create a completion that this node's policy sampled."""
        return cls(tokens.ids, (True,) * len(tokens.ids), tokens.logprobs, tokens.versions)

    def first(self, count: int) -> TrainingCompletion:
        if len(self.ids) <= count:
            return self
        return replace(
            self,
            ids=self.ids[:count],
            trained=self.trained[:count],
            behaviour=None if self.behaviour is None else self.behaviour[:count],
            versions=None if self.versions is None else self.versions[:count],
            reference=None if self.reference is None else self.reference[:count],
        )


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A task's prompt, completions and rewards; ``local`` if this node sampled them.

    ``trusted`` marks a peer's group whose author the user trusts.
    """

    prompt_ids: tuple[int, ...]
    completions: tuple[TrainingCompletion, ...]
    rewards: tuple[float, ...]
    local: bool
    trusted: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids is empty: nothing predicts a completion's first token")

    def of_hidden_state(self) -> TrainingGroup:
        """Return the group, marked as one whose rewards depend on hidden state."""
        completions = tuple(replace(completion, hidden=True) for completion in self.completions)
        return replace(self, completions=completions)


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and the completions that share it, each with its advantage.

    In ``[prompt | c1 | c2 | ...]`` every completion is positioned right after the prompt and sees
    the prompt and itself. The last token of each is omitted because it predicts nothing.
    """

    prompt_ids: tuple[int, ...]
    completions: tuple[TrainingCompletion, ...]
    advantages: tuple[float, ...]
    local: bool
    share: float = 1.0  # of a token or completion, see :meth:`node.learner.losses.Loss.share`
    group: int = 0  # number of its group in the update
    first: int = 0  # number of its first completion among all of the update
    unpacked: bool = False  # whether attention needs no mask, see ``Unpacking``
    length: int = field(init=False)  # tokens read

    def __post_init__(self) -> None:
        num_tokens = sum(len(c.ids) for c in self.completions) - len(self.completions)
        object.__setattr__(self, "length", len(self.prompt_ids) + num_tokens)

    @property
    def shared(self) -> bool:
        """Whether several completions share the prompt."""
        return len(self.completions) > 1

    @property
    def longest(self) -> int:
        """Tokens read of the prompt and the longest completion."""
        return len(self.prompt_ids) - 1 + max(len(c.ids) for c in self.completions)

    def part(self, begin: int, end: int) -> Row:
        return replace(
            self,
            completions=self.completions[begin:end],
            advantages=self.advantages[begin:end],
            first=self.first + begin,
        )

    def parts(self) -> list[Row]:
        return [self.part(i, i + 1) for i in range(len(self.completions))]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``B`` right-padded rows of ``L`` tokens, ``C`` completions of up to ``T``.

    Ids, versions and indexes are int64, masks bool, all else float32.
    """

    input_ids: Tensor  # ``[B, L]``
    position_ids: Tensor | None  # ``[B, L]``; None if every row has one completion
    segments: Tensor | None  # ``[B, L]``, 0 in the prompt, 1 in the first completion; if masked
    unpacking: Unpacking | None  # None if masked, or if every row has one completion
    kept: int  # last positions per row, from the first that predicts a completion's token
    scored: Tensor  # ``[N]``, positions that predict trained tokens, indexes into ``[B, kept]``
    source: Tensor  # ``[C, T]``, index in ``scored`` of the token's predictor; 0 if not trained
    targets: Tensor  # ``[C, T]``, token ids; 0 where not trained
    mask: Tensor  # ``[C, T]``, trained tokens
    behaviour: Tensor  # ``[C, T]``, mu; 0 where unknown
    versions: Tensor  # ``[C, T]``, of this node's policy; -1 for tokens of another node's
    reference: Tensor  # ``[C, T]``, log-probs of the reference model; infinity where unknown
    known: Tensor  # ``[C, 1]``, completions with known mu
    local: Tensor  # ``[C, 1]``, completions this node sampled for this group
    hidden: Tensor  # ``[C, 1]``, completions whose reward depends on what is not observed
    advantages: Tensor  # ``[C]``
    shares: Tensor  # ``[C]``
    numbered: Tensor  # ``[C]``, ``numbers`` on the device
    numbers: tuple[int, ...]  # of the ``C`` completions in the update
    groups: tuple[int, ...]  # of the ``B`` rows in the update
    per_row: tuple[int, ...]  # ``B``, of ``scored``
    trained: Tensor  # ``[K]``, trained tokens in the order of their source, indexes into ``[C, T]``
    host_ids: Tensor  # ``[B, L]``, ``input_ids`` in main memory
    host_sources: NDArray[np.int64]  # ``[K]``, sources of ``trained``, ascending


def held_tokens(rows: Sequence[Row], mask_weight: float) -> float:
    """Return the memory of padded rows, in tokens of rows without a mask or copies."""
    length = max(row.length for row in rows)
    tokens = len(rows) * length
    if any(row.unpacked for row in rows):
        copies = sum(len(row.completions) for row in rows) * max(row.longest for row in rows)
        return tokens + COPY_WEIGHT * max(0, copies - tokens)
    return tokens * (1.0 + length * (mask_weight if any(row.shared for row in rows) else 0.0))


def micro_batches(
    rows: Iterable[Row],
    token_budget: int,
    pad_id: int,
    device: torch.device,
    mask_weight: float = 0.0,
    padding: float = math.inf,
) -> Iterator[MicroBatch]:
    """Batch rows of similar length so that :func:`held_tokens` meets the budget.

    A micro-batch has at most ``padding`` tokens of padding, and unshared rows join masked ones only
    if that adds little. If one row is unpacked, all are. A row beyond the budget gets its own.
    """
    pending: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.shared, row.unpacked, row.length)):
        candidate = [*pending, row]
        if pending and not lie_well(candidate, token_budget, mask_weight, padding):
            yield micro_batch(pending, pad_id, device)
            candidate = [row]
        pending = candidate
    if pending:
        yield micro_batch(pending, pad_id, device)


def lie_well(
    rows: Sequence[Row], token_budget: int, mask_weight: float, most: float = math.inf
) -> bool:
    """Return whether rows may form one micro-batch."""
    length, shared = max(row.length for row in rows), any(row.shared for row in rows)
    padding = sum(length - row.length for row in rows)
    unshared = sum(length - row.length for row in rows if not row.shared) if shared else 0
    if any(row.unpacked for row in rows):
        longest, unshared = max(row.longest for row in rows), 0
        padding += sum(len(row.completions) * (longest - row.longest) for row in rows)
    tokens = held_tokens(rows, mask_weight)
    return tokens <= token_budget and padding <= most and unshared <= CHEAP_PADDING


def micro_batch(rows: Sequence[Row], pad_id: int, device: torch.device) -> MicroBatch:
    """Lay rows out in this order."""
    shared = any(row.shared for row in rows)
    first = min(len(row.prompt_ids) for row in rows) - 1
    kept = max(row.length for row in rows) - first
    length = kept + first
    answers = [c for row in rows for c in row.completions]
    width = max(len(c.ids) for c in answers)
    mask = _padded([c.trained for c in answers], width, False, np.bool_)
    predictors = torch.from_numpy(_predictors(rows, width, kept) - first)
    scored, inverse = torch.unique(predictors[mask], return_inverse=True)
    ascending, order = inverse.sort(stable=True)
    advantages = [a for row in rows for a in row.advantages]
    shares = [row.share for row in rows for _ in row.completions]
    local = [[row.local] for row in rows for _ in row.completions]
    numbers = tuple(row.first + i for row in rows for i in range(len(row.completions)))
    ids = _padded([_read(row) for row in rows], length, pad_id, np.int64)
    positions, segments = zip(*map(_placed, rows), strict=True) if shared else ((), ())
    unpacked = any(row.unpacked for row in rows)
    masked = shared and not unpacked
    return MicroBatch(
        input_ids=ids.to(device),
        position_ids=_padded(positions, length, 0, np.int64).to(device) if shared else None,
        segments=_padded(segments, length, 0, np.int64).to(device) if masked else None,
        unpacking=_unpacking(rows, length, device) if unpacked else None,
        kept=kept,
        scored=scored.to(device),
        source=torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, inverse).to(device),
        targets=(_padded([c.ids for c in answers], width, 0, np.int64) * mask).to(device),
        mask=mask.to(device),
        behaviour=_padded([c.behaviour or () for c in answers], width, 0.0, np.float32).to(device),
        versions=_padded([c.versions or () for c in answers], width, -1, np.int64).to(device),
        reference=_padded([c.reference or () for c in answers], width, math.inf, np.float32).to(
            device
        ),
        known=torch.tensor([[c.behaviour is not None] for c in answers], device=device),
        local=torch.tensor(local, device=device),
        hidden=torch.tensor([[c.hidden] for c in answers], device=device),
        advantages=torch.tensor(advantages, dtype=torch.float32, device=device),
        shares=torch.tensor(shares, dtype=torch.float32, device=device),
        numbered=torch.tensor(numbers, dtype=torch.float32, device=device),
        numbers=numbers,
        groups=tuple(row.group for row in rows),
        per_row=tuple(torch.bincount(scored // kept, minlength=len(rows)).tolist()),
        trained=mask.flatten().nonzero().squeeze(-1)[order].to(device),
        host_ids=ids,
        host_sources=ascending.numpy(),
    )


def _read(row: Row) -> list[int]:
    return [*row.prompt_ids, *chain.from_iterable(c.ids[:-1] for c in row.completions)]


def _placed(row: Row) -> tuple[list[int], list[int]]:
    length = len(row.prompt_ids)
    positions, segments = [*range(length)], [0] * length
    for number, completion in enumerate(row.completions, 1):
        num_tokens = len(completion.ids) - 1
        positions += range(length, length + num_tokens)
        segments += [number] * num_tokens
    return positions, segments


def _unpacking(rows: Sequence[Row], length: int, device: torch.device) -> Unpacking:
    sequences = []
    for begin, row in zip(range(0, len(rows) * length, length), rows, strict=True):
        start = begin + len(row.prompt_ids)
        prompt = [*range(begin, start)]
        for completion in row.completions:
            end = start + len(completion.ids) - 1
            sequences.append([*prompt, *range(start, end)])
            start = end
    width = max(map(len, sequences))
    origins = np.zeros(len(rows) * length, np.int64)
    for number, sequence in enumerate(sequences):
        origins[sequence] = np.arange(len(sequence)) + number * width
    indices = _padded(sequences, width, 0, np.int64)
    return Unpacking(indices.to(device), torch.from_numpy(origins).to(device))


def _predictors(rows: Sequence[Row], width: int, length: int) -> NDArray[np.int64]:
    """Return the place that predicts each token, counted through rows of ``length``."""
    ends, starts = [], []
    for number, row in enumerate(rows):
        start = number * length + len(row.prompt_ids)
        ends += [start - 1] * len(row.completions)
        for completion in row.completions:
            starts.append(start)
            start += len(completion.ids) - 1
    indices = np.add.outer(np.array(starts, np.int64), np.arange(-1, width - 1))
    indices[:, 0] = ends
    return indices


def _padded(lines: Sequence[Sequence[float]], width: int, fill: float, dtype: type) -> Tensor:
    # Line by line, because torch.tensor is several times slower on nested sequences.
    padded: NDArray[Any] = np.full((len(lines), width), fill, dtype)
    for target, line in zip(padded, lines, strict=True):
        target[: len(line)] = line
    return torch.from_numpy(padded)
