"""Rows of a batch that share a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from transformers import DynamicCache

from node.engines.transformers.batch_rows import BatchRows


@dataclass(slots=True)
class Cohort:
    """Rows of similar length that share a cache.

    Attributes:
        size: how many; cohorts lie one behind the other in the batch.
        hidden: ``[size, tokens]``, what is not a row's own; None where nothing is.
    """

    cache: DynamicCache
    size: int
    hidden: Tensor | None = None


class Part(NamedTuple):
    """Rows that become part of a cohort.

    Attributes:
        lines: of the cache, that the rows begin with.
        before: where the rows were in the batch; empty for newcomers.
    """

    cache: DynamicCache
    lines: Tensor
    rows: BatchRows
    before: Tensor
