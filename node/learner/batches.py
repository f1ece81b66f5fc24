"""What the learner trains on, and how it is laid out in micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.rollout import Tokens

CHEAP_PADDING = 256
"""Tokens that take less time in a pass than a pass takes for itself."""


@dataclass(frozen=True, slots=True)
class TrainingCompletion:
    """One completion in the learner's own vocabulary.

    Attributes:
        ids: token ids, the end-of-sequence token included where the completion stopped by itself.
        trained: per token, whether the policy wrote it (an environment's tokens are masked).
        behaviour: per token, its log-prob under the policy that sampled it (read where trained);
            None where unknown.
        versions: per token, the version of this node's policy that sampled it; None where another
            node's did.
        replayed: it was written for an earlier group (:mod:`node.rollout.replay`).
    """

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    behaviour: tuple[float, ...] | None = None
    versions: tuple[int, ...] | None = None
    replayed: bool = False

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.trained)}
        lengths |= {len(each) for each in (self.behaviour, self.versions) if each is not None}
        if len(lengths) != 1:
            raise ValueError(
                f"ids, trained, behaviour and versions differ in length: {sorted(lengths)}"
            )

    @classmethod
    def own(cls, tokens: Tokens) -> TrainingCompletion:
        """One that this node's policy wrote."""
        return cls(tokens.ids, (True,) * len(tokens.ids), tokens.logprobs, tokens.versions)

    def first(self, count: int) -> TrainingCompletion:
        """The first ``count`` tokens."""
        if len(self.ids) <= count:
            return self
        behaviour = None if self.behaviour is None else self.behaviour[:count]
        versions = None if self.versions is None else self.versions[:count]
        ids, trained = self.ids[:count], self.trained[:count]
        return TrainingCompletion(ids, trained, behaviour, versions, self.replayed)


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """One task's prompt, its completions and their rewards; ``own`` where this node wrote them."""

    prompt_ids: tuple[int, ...]
    completions: tuple[TrainingCompletion, ...]
    rewards: tuple[float, ...]
    own: bool

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids is empty: nothing predicts a completion's first token")


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt, read once, and the completions that share it, each with its advantage.

    ``[prompt | c1 | c2 | ...]``: every completion is placed right behind the prompt and sees the
    prompt and itself. The last token of each is left out, since nothing is predicted from it.

    Attributes:
        share: what a token, or a completion, counts in the loss: see
            :meth:`node.learner.losses.Loss.share`.
        group: number of its group in the update.
        first: number of its first completion among all of the update.
        credits: of each completion, advantages by token, where turns have their own
            (:mod:`node.learner.update_rows`); empty where all tokens have their completion's.
        length: tokens read.
    """

    prompt_ids: tuple[int, ...]
    completions: tuple[TrainingCompletion, ...]
    advantages: tuple[float, ...]
    own: bool
    share: float = 1.0
    group: int = 0
    first: int = 0
    credits: tuple[tuple[float, ...], ...] = ()
    length: int = field(init=False)

    def __post_init__(self) -> None:
        inner = sum(len(c.ids) for c in self.completions) - len(self.completions)
        object.__setattr__(self, "length", len(self.prompt_ids) + inner)

    @property
    def shared(self) -> bool:
        """Whether a mask has to keep completions apart."""
        return len(self.completions) > 1

    def part(self, begin: int, end: int) -> Row:
        """The row with these of its completions."""
        return replace(
            self,
            completions=self.completions[begin:end],
            advantages=self.advantages[begin:end],
            credits=self.credits[begin:end],
            first=self.first + begin,
        )

    def parts(self) -> list[Row]:
        """A row for each completion."""
        return [self.part(i, i + 1) for i in range(len(self.completions))]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``B`` right-padded rows of ``L`` tokens with ``C`` completions of up to ``T`` tokens.

    Attributes:
        input_ids: int64 ``[B, L]``.
        position_ids: int64 ``[B, L]``, or None where every row has one completion.
        segments: int64 ``[B, L]``, 0 in the prompt, 1 in the row's first completion and so on;
            None where ``position_ids`` is.
        kept: the last positions of every row, from the first that predicts a completion's token.
        scored: int64 ``[N]``, the positions that predict trained tokens, counted through
            ``[B, kept]``.
        source: int64 ``[C, T]``, which of ``scored`` predicts the token; zero where not trained.
        targets: int64 ``[C, T]``, the tokens' ids; zero where not trained.
        mask: bool ``[C, T]``, the trained tokens.
        behaviour: float32 ``[C, T]``, mu; zero where unknown.
        versions: int64 ``[C, T]``, of this node's policy; -1 where another's sampled the token.
        known: bool ``[C, 1]``, completions whose mu is known.
        own: bool ``[C, 1]``, completions this node wrote for this group.
        replayed: bool ``[C, 1]``, those that anybody wrote for an earlier one.
        advantages: float32 ``[C]``.
        credits: float32 ``[C, T]``, advantages by token; None where no row has any.
        shares: float32 ``[C]``, those of :class:`Row`.
        numbers: of the ``C`` completions among all of the update.
        groups: numbers of the ``B`` rows' groups in the update.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    segments: Tensor | None
    kept: int
    scored: Tensor
    source: Tensor
    targets: Tensor
    mask: Tensor
    behaviour: Tensor
    versions: Tensor
    known: Tensor
    own: Tensor
    replayed: Tensor
    advantages: Tensor
    credits: Tensor | None
    shares: Tensor
    numbers: tuple[int, ...]
    groups: tuple[int, ...]


def held_tokens(rows: int, longest: Row, mask_weight: float) -> float:
    """Memory of as many rows padded to the longest, in tokens of a row without a mask.

    Args:
        mask_weight: of one number of the mask.
    """
    return _held(rows, longest.length, mask_weight if longest.shared else 0.0)


def _held(rows: int, length: int, mask_weight: float) -> float:
    return rows * length * (1.0 + length * mask_weight)


def micro_batches(
    rows: Iterable[Row],
    token_budget: int,
    pad_id: int,
    device: torch.device,
    mask_weight: float = 0.0,
) -> Iterator[MicroBatch]:
    """Lay rows out, of similar length together, so that :func:`held_tokens` meets the budget.

    Rows with one completion need no mask, and stay among themselves but for few tokens' sake. A row
    beyond the budget gets a micro-batch of its own.
    """
    pending: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.shared, row.length)):
        together = [*pending, row]
        if pending and not _lie_well(together, token_budget, mask_weight):
            yield _collate(pending, pad_id, device)
            together = [row]
        pending = together
    if pending:
        yield _collate(pending, pad_id, device)


def _lie_well(rows: Sequence[Row], token_budget: int, mask_weight: float) -> bool:
    """Whether rows, those of several completions last, may be one micro-batch."""
    length, masked = max(row.length for row in rows), rows[-1].shared
    held = _held(len(rows), length, mask_weight if masked else 0.0)
    padding = sum(length - row.length for row in rows if not row.shared) if masked else 0
    return held <= token_budget and padding <= CHEAP_PADDING


def _collate(rows: Sequence[Row], pad_id: int, device: torch.device) -> MicroBatch:
    shared = any(row.shared for row in rows)
    first = min(len(row.prompt_ids) for row in rows) - 1
    kept = max(row.length for row in rows) - first
    length = kept + first
    done = [c for row in rows for c in row.completions]
    width = max(len(c.ids) for c in done)
    mask = _padded([c.trained for c in done], width, False, np.bool_)
    predictors = torch.from_numpy(_predictors(rows, width, kept) - first)
    scored, inverse = torch.unique(predictors[mask], return_inverse=True)
    advantages = [a for row in rows for a in row.advantages]
    shares = [row.share for row in rows for _ in row.completions]
    own = [[row.own and not c.replayed] for row in rows for c in row.completions]
    ids = [_read(row) for row in rows]
    positions, segments = zip(*map(_placed, rows), strict=True) if shared else ((), ())
    return MicroBatch(
        input_ids=_padded(ids, length, pad_id, np.int64).to(device),
        position_ids=_padded(positions, length, 0, np.int64).to(device) if shared else None,
        segments=_padded(segments, length, 0, np.int64).to(device) if shared else None,
        kept=kept,
        scored=scored.to(device),
        source=torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, inverse).to(device),
        targets=(_padded([c.ids for c in done], width, 0, np.int64) * mask).to(device),
        mask=mask.to(device),
        behaviour=_padded([c.behaviour or () for c in done], width, 0.0, np.float32).to(device),
        versions=_padded([c.versions or () for c in done], width, -1, np.int64).to(device),
        known=torch.tensor([[c.behaviour is not None] for c in done], device=device),
        own=torch.tensor(own, device=device),
        replayed=torch.tensor([[c.replayed] for c in done], device=device),
        advantages=torch.tensor(advantages, dtype=torch.float32, device=device),
        credits=_credits(rows, width, device),
        shares=torch.tensor(shares, dtype=torch.float32, device=device),
        numbers=tuple(row.first + i for row in rows for i in range(len(row.completions))),
        groups=tuple(row.group for row in rows),
    )


def _credits(rows: Sequence[Row], width: int, device: torch.device) -> Tensor | None:
    if not any(row.credits for row in rows):
        return None
    told = (row.credits or [(gain,) * width for gain in row.advantages] for row in rows)
    return _padded([*chain.from_iterable(told)], width, 0.0, np.float32).to(device)


def _read(row: Row) -> list[int]:
    """The row's tokens one behind the other."""
    return [*row.prompt_ids, *chain.from_iterable(c.ids[:-1] for c in row.completions)]


def _placed(row: Row) -> tuple[list[int], list[int]]:
    """The position of each token of the row, and its segment."""
    prompt = len(row.prompt_ids)
    positions, segments = [*range(prompt)], [0] * prompt
    for number, completion in enumerate(row.completions, 1):
        inner = len(completion.ids) - 1
        positions += range(prompt, prompt + inner)
        segments += [number] * inner
    return positions, segments


def _predictors(rows: Sequence[Row], width: int, length: int) -> NDArray[np.int64]:
    """For each of ``width`` tokens of all completions the place, counted through rows of
    ``length``, that predicts it: the prompt's end for the first one, then the token before."""
    ends, begins = [], []
    for number, row in enumerate(rows):
        begin = number * length + len(row.prompt_ids)
        ends += [begin - 1] * len(row.completions)
        for completion in row.completions:
            begins.append(begin)
            begin += len(completion.ids) - 1
    places = np.add.outer(np.array(begins, np.int64), np.arange(-1, width - 1))
    places[:, 0] = ends
    return places


def _padded(lines: Sequence[Sequence[float]], width: int, fill: float, dtype: type) -> Tensor:
    # Line by line, as torch.tensor takes several times as long over nested sequences.
    padded: NDArray[Any] = np.full((len(lines), width), fill, dtype)
    for target, line in zip(padded, lines, strict=True):
        target[: len(line)] = line
    return torch.from_numpy(padded)
