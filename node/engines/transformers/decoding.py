"""Batched decoding with the policy's model; rows join and leave between steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.cuda import Stream
from transformers import DynamicCache

from node.engines.engine import Prompts, RequestOutput, Sampling
from node.engines.transformers.fused_decoder import FusedDecoder, Past, has_fused_step
from node.engines.transformers.kv_cache import (
    CacheRows,
    Continued,
    PausedRow,
    alike,
    gathered,
    growing_cache,
    joinable,
    logits_after,
    paused_rows,
    read_all,
)
from node.engines.transformers.static_decoding import StaticDecoding
from node.engines.transformers.static_step import StaticStep, cut_at_end, sample_tokens
from node.errors import NodeError
from node.policy.device import give_back
from node.policy.policy import Policy
from swarm.common.util import counted

if TYPE_CHECKING:
    from node.policy.lora import Adapter


log = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchRows:
    """The state of a batch, one entry per row."""

    number: Tensor  # in order of joining
    last: Tensor  # step at which the row is truncated
    position: Tensor  # of the next token, equal to the row's number of cached tokens
    ended: Tensor
    reported: Tensor  # whether the end was reported
    logits: Tensor  # ``[B, V]``, of the next token

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, rows: Tensor) -> BatchRows:
        return BatchRows(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def of(cls, parts: Sequence[BatchRows]) -> BatchRows:
        """Concatenate the rows of all parts, in order."""
        names = [each.name for each in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(slots=True)
class CacheGroup:
    """Rows of similar length that share a cache, consecutive in the batch."""

    cache: DynamicCache
    size: int
    hidden: Tensor | None = None  # ``[size, tokens]``, not the row's own; None if none is


class CacheGroupRows(NamedTuple):
    """Rows that become part of a group."""

    cache: DynamicCache
    lines: Tensor  # of the cache, that the rows continue
    rows: BatchRows
    before: Tensor  # former places in the batch; empty for new rows


CHECK_EVERY_ON_GPU = 8
COMPACT_BELOW = 0.75
REPORT_EVERY = 32  # steps between reports of unfinished rows; a process that dies loses the rest
PREFILL_WORTH, DECODE_WORTH = 256, 1024
"""Padding tokens that cost as much as another forward pass, or another attention per layer."""
HIDDEN = -1e4


class Decoding:
    """A batch in decoding: a prompt is prefilled once and its cache repeated per row.

    The policy's weights must not change meanwhile. ``random`` yields one number per row and step.
    With ``eight_bits`` only the prefill uses the full weights. ``left`` counts the unfinished rows
    at the last check: at every step on a CPU, every eighth elsewhere. ``paused`` holds paused rows
    by number; the caller removes them.
    """

    def __init__(
        self, policy: Policy, sampling: Sampling, random: Generator, *, eight_bits: bool = False
    ) -> None:
        self._policy = policy
        self._eight_bits = eight_bits
        self._sampling = sampling
        self._random = random
        self._device = policy.device
        self._on_cpu = policy.device.type == "cpu"
        self._stop = torch.tensor(policy.stop_ids, device=self._device)
        self._joinable = joinable(growing_cache(policy.model.config))
        self._fused: FusedDecoder | None = None
        self._rows: BatchRows | None = None
        self._groups: list[CacheGroup] = []
        self._unsaved: list[tuple[Tensor, Tensor]] = []
        self._joined = 0
        self._steps = 0
        self._reported_at = 0
        self._last = 0
        self._lasting: set[int] = set()
        self._unread = 0
        self.left = 0
        self.paused: dict[int, PausedRow] = {}

    @property
    def open(self) -> bool:
        """Whether rows can join."""
        return self._joinable or not self.left

    def join(
        self,
        prompts: Prompts,
        counts: Sequence[int],
        caps: Sequence[int],
        continued: Sequence[Continued] = (),
        lasting: Collection[int] = (),
    ) -> list[RequestOutput]:
        """Prefill prompts and return unreported tokens of the rows in the batch.

        ``counts`` has the number of completions per prompt, ``caps`` the maximum tokens per
        completion. Completions of ``continued`` rows follow those of the prompts. ``lasting`` has
        the indices of completions to pause when they end, if the cache is joinable.
        """
        outputs = self.flush()
        counts = [*counts, *[1] * len(continued)]
        offsets = list(accumulate(counts, initial=0))
        cost = PREFILL_WORTH if self._joinable else sys.maxsize
        new_groups = []
        for indices, cache, logits, lengths in read_all(self._policy, prompts, continued, cost):
            lines = self._tensor([line for line, n in enumerate(indices) for _ in range(counts[n])])
            numbers = [number for n in indices for number in range(offsets[n], offsets[n + 1])]
            rows = BatchRows(
                number=self._tensor(numbers) + self._joined,
                last=self._tensor([caps[number] for number in numbers]) + self._steps,
                position=lengths[lines],
                ended=torch.zeros_like(lines, dtype=torch.bool),
                reported=torch.zeros_like(lines, dtype=torch.bool),
                logits=logits[lines],
            )
            new_groups.append(CacheGroupRows(cache, lines, rows, self._tensor([])))
        if self._joinable:
            self._lasting.update(self._joined + number for number in lasting)
        self._joined += len(caps)
        self._last = max(self._last, self._steps + max(caps))
        self._arrange(new_groups)
        return outputs

    def step(self) -> list[RequestOutput]:
        """Sample one token per unfinished row; return what is due for a report."""
        rows, outputs = self._rows, list[RequestOutput]()
        assert rows is not None
        tokens, logprobs = sample_tokens(rows.logits, self._sampling, self._random)
        self._unsaved.append((tokens, logprobs))
        self._steps += 1
        self._unread = 1
        rows.ended |= (tokens == self._stop).any(-1) | (rows.last == self._steps)
        if self._on_cpu or self._steps % CHECK_EVERY_ON_GPU == 0 or self._steps == self._last:
            remaining = len(rows) - int(rows.ended.sum())
            if remaining < self.left:
                outputs = self._report(rows.ended & ~rows.reported)
                self.left = remaining
            if not remaining:
                self._rows, self._groups = None, []
                return outputs
            # Ended rows leave once that repays a copy of the cache.
            if remaining <= COMPACT_BELOW * len(rows):
                tokens = tokens[self._arrange([])]
        if self._steps - self._reported_at == REPORT_EVERY:
            outputs += self.flush()
        self._forward(tokens)
        return outputs

    def flush(self) -> list[RequestOutput]:
        """Return the unreported tokens of the rows in the batch."""
        outputs = self._report(~self._rows.reported) if self._rows else []
        self._unsaved.clear()
        self._reported_at = self._steps
        return outputs

    def _report(self, selected: Tensor) -> list[RequestOutput]:
        rows = self._rows
        if rows is None or not self._unsaved:
            return []
        ids, logprobs = (torch.cat(each, 1) for each in zip(*self._unsaved, strict=True))
        self._unsaved = [(ids, logprobs)]
        rows.reported = rows.ended.clone()
        columns = [each[selected].tolist() for each in (rows.number, rows.last, ids, logprobs)]
        outputs = [self._written(*row) for row in zip(*columns, strict=True)]
        if self._lasting:
            self._pause(rows, selected.nonzero().squeeze(-1).tolist(), outputs, ids.shape[1])
        return outputs

    def _pause(
        self, rows: BatchRows, indices: Sequence[int], outputs: Sequence[RequestOutput], steps: int
    ) -> None:
        """Pause those of the reported rows that ended and may continue."""
        excess: dict[int, int] = {}
        for index, output in zip(indices, outputs, strict=True):
            if output.finish is not None and output.number in self._lasting:
                # Tokens read after the end, and the end itself, which a continuation prefills.
                excess[index] = steps - self._unread - len(output.ids) + 1
        begin = 0
        for group in self._groups:
            in_group = [index for index in excess if begin <= index < begin + group.size]
            if in_group:
                selected = self._tensor(in_group)
                extra = self._tensor([excess[index] for index in in_group])
                paused = paused_rows(group.cache, selected - begin, rows.position[selected], extra)
                self.paused |= zip(rows.number[selected].tolist(), paused, strict=True)
            begin += group.size

    def _written(self, row: int, last: int, ids: list[int], logprobs: list[float]) -> RequestOutput:
        finish = cut_at_end(ids, last - self._reported_at, self._policy.stop_ids)
        return RequestOutput(row, ids, logprobs[: len(ids)], self._policy.version, finish)

    def _arrange(self, new_groups: Sequence[CacheGroupRows]) -> Tensor:
        """Remove ended rows and add new ones; return former places of those that stay."""
        parts = [*self._staying(), *new_groups]
        if self._fused is None and has_fused_step(self._policy.model, parts[0].cache):
            steps = self._last - self._steps
            self._fused = FusedDecoder(self._policy.model, steps, eight_bits=self._eight_bits)
        cost = DECODE_WORTH if self._fused and self._on_cpu else sys.maxsize
        lengths = [int(part.rows.position.max()) for part in parts]
        groups = alike(lengths, cost, [len(part.lines) for part in parts])
        members = [[parts[n] for n in indices] for indices in groups]
        self._groups = [self._cache_group(each) for each in members]
        ordered = [part for each in members for part in each]
        self._rows = BatchRows.of([part.rows for part in ordered])
        self.left = len(self._rows) - int(self._rows.ended.sum())
        self._look_ahead(self._rows)
        old_rows = torch.cat([part.before for part in ordered])
        self._unsaved = [(ids[old_rows], logprobs[old_rows]) for ids, logprobs in self._unsaved]
        return old_rows

    def _staying(self) -> list[CacheGroupRows]:
        """Return the current rows; ended ones leave once that repays a copy of the cache."""
        parts: list[CacheGroupRows] = []
        begin = 0
        for group in self._groups:
            assert self._rows is not None
            active = ~self._rows.ended[begin : begin + group.size]
            remaining = int(active.sum())
            if remaining <= COMPACT_BELOW * group.size:
                lines = active.nonzero().squeeze(-1)
            else:
                lines = torch.arange(group.size, device=self._device)
            if remaining:
                old_rows = begin + lines
                parts.append(CacheGroupRows(group.cache, lines, self._rows[old_rows], old_rows))
            begin += group.size
        return parts

    def _cache_group(self, parts: Sequence[CacheGroupRows]) -> CacheGroup:
        size = sum(len(part.lines) for part in parts)
        for group in self._groups:
            if len(parts) == 1 and parts[0].cache is group.cache and size == group.size:
                return group
        cache_rows = []
        for cache, lines, rows, _ in parts:
            first = cache.get_seq_length() - int(rows.position.max())
            cache_rows.append(CacheRows(cache, lines, first))
        return CacheGroup(gathered(cache_rows), size)

    def _look_ahead(self, rows: BatchRows) -> None:
        steps_left, dtype = self._last - self._steps, self._policy.model.dtype
        positions = torch.split(rows.position, [group.size for group in self._groups])
        pasts: list[Past] = []
        for group, position in zip(self._groups, positions, strict=True):
            length = group.cache.get_seq_length()
            pads = (length - position)[:, None]
            columns = torch.arange(length + steps_left, device=self._device)
            group.hidden = hidden = columns < pads if bool(pads.any()) else None
            bias = None if hidden is None else hidden[:, None, None].to(dtype) * HIDDEN
            pasts.append(Past(group.cache, group.size, bias))
        if self._fused:
            self._fused.attach(pasts, int(rows.position.max()) + steps_left)

    def _forward(self, tokens: Tensor) -> None:
        rows = self._rows
        assert rows is not None
        if self._fused:
            rows.logits = self._fused.step(tokens, rows.position)
        else:
            (group,) = self._groups
            length = group.cache.get_seq_length() + 1
            mask = None if group.hidden is None else (~group.hidden[:, :length]).long()
            # Ended rows are decoded until they leave, and may exceed the context length.
            positions = rows.position.clamp(max=self._policy.context_length - 1)[:, None]
            rows.logits = logits_after(self._policy, tokens, mask, positions, group.cache)
        rows.position += 1
        self._unread = 0

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


KEPT, KEPT_SHARE = 1 << 31, 1 / 16
"""Bytes of a static step, and their share of the GPU's memory, that are kept between batches."""


class Decoders:
    """Opens the decoding of one batch after another.

    On a CUDA GPU the step of a model that :func:`has_fused_step` is recorded, if ``graphs`` are
    wanted. The recordings are kept for later batches, whose weights may differ. So is the copy of
    the weights that adapters are merged into.
    """

    def __init__(self, *, eight_bits: bool = False, graphs: bool = True) -> None:
        self._eight_bits, self._graphs = eight_bits, graphs
        self._step: StaticStep | None = None
        self._stream: Stream | None = None
        self._merged: tuple[Adapter, Policy] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Decoders, eight_bits=self._eight_bits, graphs=self._graphs), ()

    @torch.inference_mode()
    def merged(self, policy: Policy) -> Policy:
        """Return the policy with plain weights, in the copy of the batch before if it was kept.

        No batch with earlier weights of an adapter may be running.
        """
        if policy.adapter is None:
            return policy
        adapter, previous = self._merged or (None, None)
        merged = policy.merged(previous if adapter is policy.adapter else None)
        self._merged = policy.adapter, merged
        return merged

    def open(
        self, policy: Policy, sampling: Sampling, random: Generator, *, beside: bool = False
    ) -> Decoding | StaticDecoding:
        """Begin a batch; the one before must have ended unless this one runs ``beside`` it."""
        model = policy.model
        static = self._graphs and not beside and policy.device.type == "cuda"
        if not static or not has_fused_step(model, growing_cache(model.config)):
            return Decoding(policy, sampling, random, eight_bits=self._eight_bits)
        if self._step is None or not self._step.reads(model):
            self._step = None  # Its memory is free before there is another.
            self._stream = self._stream or Stream(policy.device)  # type: ignore[no-untyped-call]
            self._step = StaticStep(model, self._stream)
        return StaticDecoding(self._step, policy, sampling, random)

    def fewer(self, policy: Policy, rows: int, tokens: int) -> int:
        """Free memory after it ran out; return how many rows to decode together from now on.

        ``rows`` is how many were, ``tokens`` the longest of them, prompt included. Raises NodeError
        if there was one.
        """
        if rows <= 1:
            raise NodeError(
                "memory ran out while a single completion was sampled",
                f"up to {counted(tokens, 'token')}, prompt included",
                "Decrease engine.max_new_tokens, use a smaller model, or let the engine have more "
                "of the memory: swarm-node plan shows what needs it.",
            )
        self._step = None
        give_back(policy.device)
        log.warning(
            "memory ran out while %d completions were sampled: at most %d are sampled together "
            "until the next start",
            rows,
            rows // 2,
        )
        return rows // 2

    def release(self, policy: Policy) -> None:
        """Free what is large or of no more use; call this between batches."""
        if self._step is None:
            self._merged = None
            return
        memory = torch.cuda.get_device_properties(policy.device).total_memory
        size = self._step.bytes + (policy.adapter.merged_bytes if policy.adapter else 0)
        if size > min(KEPT, KEPT_SHARE * memory):
            self._step = self._merged = None
