"""Batched decoding in the slots of a static step, for GPUs; the host only keeps the books."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Generator, Tensor

from node.engines.engine import Prompts, RequestOutput, Sampling
from node.engines.transformers.kv_cache import Continued, PausedRow, read_all
from node.engines.transformers.static_step import (
    RING,
    StaticStep,
    cut_at_end,
    length_bucket,
    row_bucket,
)
from node.policy.policy import Policy

LOOK_EVERY = 8  # steps
PREFILL_WORTH = 1 << 14  # padding tokens that cost as much as another forward pass


@dataclass(slots=True)
class _Row:
    number: int
    begin: int  # cached tokens when it joined
    joined: int  # step at which it did
    cap: int
    written: list[int] = field(default_factory=list)  # reported

    @property
    def last(self) -> int:
        return self.joined + self.cap


class StaticDecoding:
    """A batch whose rows have slots; the same interface as ``Decoding``, on any device.

    A row joins by index, at any time. Every eighth step the host looks which rows have ended, and
    only then waits for the device; the last rows move to their slots.
    """

    open = True  # Rows can join.

    def __init__(
        self, step: StaticStep, policy: Policy, sampling: Sampling, random: Generator
    ) -> None:
        self._step, self._policy, self._sampling, self._random = step, policy, sampling, random
        self._device = policy.device
        self._rows: list[_Row] = []  # by slot
        self._steps = 0
        self._reported = 0  # step of the last flush
        self._joined = 0
        self._lasting: set[int] = set()
        self.paused: dict[int, PausedRow] = {}
        self._stop = self._tensor(policy.stop_ids)
        step.begin()

    @property
    def left(self) -> int:
        """Rows that have not ended, as of the last look."""
        return len(self._rows)

    def join(
        self,
        prompts: Prompts,
        counts: Sequence[int],
        caps: Sequence[int],
        continued: Sequence[Continued] = (),
        lasting: Collection[int] = (),
    ) -> list[RequestOutput]:
        """Prefill prompts and return unreported tokens of the rows in the batch.

        As in :meth:`node.engines.transformers.decoding.Decoding.join`.
        """
        outputs = self.flush()
        self._lasting.update(self._joined + number for number in lasting)
        counts = [*counts, *[1] * len(continued)]
        lengths = [*map(len, prompts), *(each.row.length + len(each.ids) for each in continued)]
        owners = [n for n, count in enumerate(counts) for _ in range(count)]
        rows = [
            _Row(self._joined + number, lengths[n], self._steps, caps[number])
            for number, n in enumerate(owners)
        ]
        first_free = len(self._rows)
        longest = max(row.begin + row.cap for row in rows)
        self._step.reserve(row_bucket(first_free + len(rows)), longest, keep=first_free > 0)
        offsets = [first_free + first for first in accumulate(counts, initial=0)]
        batches = read_all(self._policy, prompts, continued, PREFILL_WORTH)
        for indices, cache, logits, num_tokens in batches:
            lines = self._tensor([line for line, n in enumerate(indices) for _ in range(counts[n])])
            slots = self._tensor([s for n in indices for s in range(offsets[n], offsets[n + 1])])
            self._step.load(slots, cache, lines, num_tokens[lines])
            self._step.slots.logits[slots] = logits[lines]
        self._rows += rows
        self._joined += len(rows)
        return outputs

    def step(self) -> list[RequestOutput]:
        """Sample one token per row; return what is due for a report."""
        longest = self._steps + max(row.begin - row.joined for row in self._rows) + 1
        rows, length = row_bucket(len(self._rows)), length_bucket(longest)
        length = min(length, self._step.capacity)
        self._step.run(rows, length, self._sampling, self._random)
        self._steps += 1
        due = self._steps % LOOK_EVERY == 0 or any(row.last == self._steps for row in self._rows)
        if self._steps - self._reported == RING:
            return self.flush()
        return self._look() if due else []

    def flush(self) -> list[RequestOutput]:
        """Return the unreported tokens of the rows in the batch."""
        if self._steps == self._reported:
            return []
        outputs = self._look()
        outputs += self._report(range(len(self._rows)))
        self._step.slots.column.zero_()
        self._reported = self._steps
        return outputs

    def _look(self) -> list[RequestOutput]:
        """Report the rows that have ended, and let them leave."""
        ids = self._step.slots.ids[: len(self._rows), : self._steps - self._reported]
        stopped = torch.isin(ids, self._stop).any(-1).tolist()
        slots = [
            slot for slot, row in enumerate(self._rows) if stopped[slot] or row.last <= self._steps
        ]
        if not slots:
            return []
        outputs = self._report(slots)
        self._pause([slot for slot in slots if self._rows[slot].number in self._lasting])
        self._leave(set(slots))
        return outputs

    def _report(self, indices: Sequence[int]) -> list[RequestOutput]:
        num_tokens = self._steps - self._reported
        if not indices or not num_tokens:
            return []
        slots, selected = self._step.slots, self._tensor(indices)
        columns = [each[selected, :num_tokens].tolist() for each in (slots.ids, slots.logprobs)]
        return [
            self._written(self._rows[slot], ids, logprobs)
            for slot, ids, logprobs in zip(indices, *columns, strict=True)
        ]

    def _written(self, row: _Row, ids: list[int], logprobs: list[float]) -> RequestOutput:
        finish = cut_at_end(ids, row.cap - len(row.written), self._policy.stop_ids)
        row.written += ids
        return RequestOutput(row.number, ids, logprobs[: len(ids)], self._policy.version, finish)

    def _pause(self, slots: Sequence[int]) -> None:
        """Keep the caches of rows that may continue, without their last token."""
        if slots:
            lengths = [self._rows[slot].begin + len(self._rows[slot].written) - 1 for slot in slots]
            cache = self._step.copied(self._tensor(slots), self._tensor(lengths))
            for line, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
                self.paused[self._rows[slot].number] = PausedRow(cache, line, length)

    def _leave(self, slots: set[int]) -> None:
        """Give up slots; rows behind them move there."""
        remaining = len(self._rows) - len(slots)
        targets = [slot for slot in sorted(slots) if slot < remaining]
        sources = [slot for slot in range(remaining, len(self._rows)) if slot not in slots]
        if sources:
            rows = [self._rows[slot] for slot in sources]
            longest = self._steps + max(row.begin - row.joined for row in rows)
            length = min(length_bucket(longest), self._step.capacity)
            self._step.move(self._tensor(sources), self._tensor(targets), length)
        for source, target in zip(sources, targets, strict=True):
            self._rows[target] = self._rows[source]
        del self._rows[remaining:]

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
