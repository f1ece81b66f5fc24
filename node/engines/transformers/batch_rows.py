"""What is known of the rows of a batch that is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(slots=True)
class BatchRows:
    """One entry a row.

    Attributes:
        number: its name; rows are counted as they join.
        last: the step that it is cut at.
        position: of its next token; so many tokens of the cache are its own.
        ended, told: whether it has ended, and whether that was told.
        logits: ``[B, V]``, of its next token.
    """

    number: Tensor
    last: Tensor
    position: Tensor
    ended: Tensor
    told: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, rows: Tensor) -> BatchRows:
        """These rows, in this order."""
        return BatchRows(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def of(cls, parts: Sequence[BatchRows]) -> BatchRows:
        """The rows of all parts, in order."""
        names = [each.name for each in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
