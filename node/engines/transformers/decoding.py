"""Rows on their way from prompts to completions; others join while they are written."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from node.engines.backend import Written
from node.engines.engine import Sampling
from node.engines.transformers.fused_decoder import FusedDecoder, Past, fits
from node.engines.transformers.kv_cache import (
    Continued,
    RestingRow,
    Share,
    alike,
    gathered,
    growing_cache,
    joinable,
    logits_after,
    read,
    read_on,
    set_aside,
)
from node.policy.policy import Policy
from protocol.rollout import Finish


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


MANY_WORDS, BLOCK = 1 << 14, 256
"""A vocabulary from which on it is worth to choose a block of words first, and how many it has."""


def sample_tokens(
    logits: Tensor, sampling: Sampling, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One token a row, and its log-prob under the distribution it was drawn from.

    Inverts the cumulative distribution in float64: one random number a row, and no bias in large
    vocabularies.

    Args:
        logits: ``[B, V]``.
        random: of a device that has numbers of 64 bits; tokens are drawn there.

    Returns:
        int64 ``[B, 1]`` and float32 ``[B, 1]``.
    """
    logits = logits.float()
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    distribution = logits.log_softmax(-1)
    if sampling.greedy:
        tokens = distribution.argmax(-1, keepdim=True)
    else:
        drawn = distribution.exp().to(random.device)
        point = torch.rand(
            (len(logits), 1), generator=random, dtype=torch.float64, device=random.device
        )
        tokens = _inverted(drawn, point).clamp_(max=logits.shape[-1] - 1).to(logits.device)
    return tokens, distribution.gather(-1, tokens)


def _inverted(drawn: Tensor, point: Tensor) -> Tensor:
    """Where the cumulative sums of each row pass this part of their total, int64 ``[B, 1]``.

    Args:
        drawn: ``[B, V]``, of any sum.
        point: float64 ``[B, 1]``, from 0 up to 1.
    """
    if drawn.shape[-1] < MANY_WORDS:
        sums = drawn.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(sums, point * sums[:, -1:], right=True)
    blocks = pad(drawn, (0, -drawn.shape[-1] % BLOCK)).view(len(drawn), -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    sought = point * sums[:, -1:]
    chosen = torch.searchsorted(sums, sought, right=True).clamp_(max=sums.shape[-1] - 1)
    within = blocks.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).squeeze(1)
    before = pad(sums, (1, 0)).gather(1, chosen)
    place = torch.searchsorted(within.cumsum(-1, dtype=torch.float64), sought - before, right=True)
    return chosen * BLOCK + place.clamp_(max=BLOCK - 1)


CHECK_EVERY_ON_GPU = 8
COMPACT_BELOW = 0.75
TELL_EVERY = 32
"""Steps after which what goes on is told too; more of it would be lost with the process."""
PREFILL_WORTH, DECODE_WORTH = 256, 1024
"""Tokens of padding that are worth another forward pass, or one more attention in every layer."""
HIDDEN = -1e4


class Decoding:
    """Prompts are read once each, left-padded, and their cache is repeated for their rows.

    Args:
        policy: whose model is sampled from; its weights stay as they are meanwhile.
        random: one number is drawn from it for every row and step.
        eight_bits: whether steps multiply with weights in 8 bits; prompts are read with them whole.

    Attributes:
        left: rows that had not ended when it was last looked at: at every step on a CPU, at
            every eighth elsewhere.
        resting: rows that last and have ended, by number; whoever goes on with them takes them out.
    """

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        random: torch.Generator,
        *,
        eight_bits: bool = False,
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
        self._cohorts: list[Cohort] = []
        self._unsaved: list[tuple[Tensor, Tensor]] = []
        self._joined = 0
        self._steps = 0
        self._told_at = 0
        self._last = 0
        self._lasting: set[int] = set()
        self._unread = 0
        self.left = 0
        self.resting: dict[int, RestingRow] = {}

    @property
    def open(self) -> bool:
        """Whether others can join."""
        return self._joinable or not self.left

    def join(
        self,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        caps: Sequence[int],
        continued: Sequence[Continued] = (),
        lasting: Collection[int] = (),
    ) -> list[Written]:
        """Read prompts, and write their completions from the next step on.

        Args:
            prompts: token ids, none of them empty.
            counts: how many completions of each prompt.
            caps: for each completion, in order, the most tokens to sample.
            continued: rows that rest and go on; their completions come behind those of prompts.
            lasting: which of the completions are set aside where they end, if rows can leave the
                cache for another one.

        Returns:
            What the rows that are left were added and was not told.
        """
        written = self.flush()
        newcomers = self._read(prompts, [*counts, *[1] * len(continued)], caps, continued)
        if self._joinable:
            self._lasting.update(self._joined + number for number in lasting)
        self._joined += len(caps)
        self._last = max(self._last, self._steps + max(caps))
        self._arrange(newcomers)
        return written

    def step(self) -> list[Written]:
        """Sample one token of every row that is left; what is worth telling now."""
        rows, written = self._rows, list[Written]()
        assert rows is not None
        tokens, logprobs = sample_tokens(rows.logits, self._sampling, self._random)
        self._unsaved.append((tokens, logprobs))
        self._steps += 1
        self._unread = 1
        rows.ended |= (tokens == self._stop).any(-1) | (rows.last == self._steps)
        if self._on_cpu or self._steps % CHECK_EVERY_ON_GPU == 0 or self._steps == self._last:
            left = len(rows) - int(rows.ended.sum())
            if left < self.left:
                written = self._tell(rows.ended & ~rows.told)
                self.left = left
            if not left:
                self._rows, self._cohorts = None, []
                return written
            # They leave once they are worth a copy of the cache.
            if left <= COMPACT_BELOW * len(rows):
                tokens = tokens[self._arrange([])]
        if self._steps - self._told_at == TELL_EVERY:
            written += self.flush()
        self._forward(tokens)
        return written

    def flush(self) -> list[Written]:
        """What the rows that are left were added and was not told."""
        written = self._tell(~self._rows.told) if self._rows else []
        self._unsaved.clear()
        self._told_at = self._steps
        return written

    def _tell(self, which: Tensor) -> list[Written]:
        rows = self._rows
        if rows is None or not self._unsaved:
            return []
        ids, logprobs = (torch.cat(each, 1) for each in zip(*self._unsaved, strict=True))
        self._unsaved = [(ids, logprobs)]
        rows.told = rows.ended.clone()
        columns = [each[which].tolist() for each in (rows.number, rows.last, ids, logprobs)]
        written = [self._written(*row) for row in zip(*columns, strict=True)]
        if self._lasting:
            self._rest(rows, which.nonzero().squeeze(-1).tolist(), written, ids.shape[1])
        return written

    def _rest(
        self, rows: BatchRows, places: Sequence[int], written: Sequence[Written], sampled: int
    ) -> None:
        """Set rows aside that have ended and may go on.

        Args:
            places: of those that were told of.
            sampled: tokens of each that were told.
        """
        over: dict[int, int] = {}
        for place, each in zip(places, written, strict=True):
            if each.finish is not None and each.number in self._lasting:
                # What was read behind the end, and the end itself, which whoever goes on reads.
                over[place] = sampled - self._unread - len(each.ids) + 1
        begin = 0
        for cohort in self._cohorts:
            here = [place for place in over if begin <= place < begin + cohort.size]
            if here:
                chosen = self._tensor(here)
                extra = self._tensor([over[place] for place in here])
                resting = set_aside(cohort.cache, chosen - begin, rows.position[chosen], extra)
                self.resting |= zip(rows.number[chosen].tolist(), resting, strict=True)
            begin += cohort.size

    def _written(self, row: int, last: int, ids: list[int], logprobs: list[float]) -> Written:
        """Cut off what was sampled after the end."""
        finish = None
        if last <= self._steps:
            finish = Finish.LENGTH
            del ids[last - self._told_at :]
        ends = [at for at, token in enumerate(ids) if token in self._policy.stop_ids]
        if ends:
            finish = Finish.STOP
            del ids[ends[0] + 1 :]
        return Written(row, ids, logprobs[: len(ids)], self._policy.version, finish)

    def _read(
        self,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        caps: Sequence[int],
        continued: Sequence[Continued],
    ) -> list[Part]:
        begins = list(accumulate(counts, initial=0))
        worth = PREFILL_WORTH if self._joinable else sys.maxsize
        done = read(self._policy, prompts, worth) if prompts else []
        behind = read_on(self._policy, continued, worth) if continued else []
        done += [each._replace(which=[len(prompts) + n for n in each.which]) for each in behind]
        parts = []
        for chosen, cache, logits, lengths in done:
            lines = self._tensor([line for line, n in enumerate(chosen) for _ in range(counts[n])])
            numbers = [number for n in chosen for number in range(begins[n], begins[n + 1])]
            rows = BatchRows(
                number=self._tensor(numbers) + self._joined,
                last=self._tensor([caps[number] for number in numbers]) + self._steps,
                position=lengths[lines],
                ended=torch.zeros_like(lines, dtype=torch.bool),
                told=torch.zeros_like(lines, dtype=torch.bool),
                logits=logits[lines],
            )
            parts.append(Part(cache, lines, rows, self._tensor([])))
        return parts

    def _arrange(self, newcomers: Sequence[Part]) -> Tensor:
        """Let rows that have ended go, and newcomers in.

        Returns:
            Which rows stay, in their new order, newcomers left out.
        """
        parts = [*self._staying(), *newcomers]
        if self._fused is None and fits(self._policy.model, parts[0].cache):
            steps = self._last - self._steps
            self._fused = FusedDecoder(self._policy.model, steps, eight_bits=self._eight_bits)
        worth = DECODE_WORTH if self._fused and self._on_cpu else sys.maxsize
        lengths = [int(part.rows.position.max()) for part in parts]
        together = alike(lengths, worth, [len(part.lines) for part in parts])
        members = [[parts[n] for n in chosen] for chosen in together]
        self._cohorts = [self._cohort(each) for each in members]
        ordered = [part for each in members for part in each]
        self._rows = BatchRows.of([part.rows for part in ordered])
        self.left = len(self._rows) - int(self._rows.ended.sum())
        self._look_ahead(self._rows)
        kept = torch.cat([part.before for part in ordered])
        self._unsaved = [(ids[kept], logprobs[kept]) for ids, logprobs in self._unsaved]
        return kept

    def _staying(self) -> list[Part]:
        """The rows that there are; those that have ended leave once they are worth a copy."""
        parts: list[Part] = []
        begin = 0
        for cohort in self._cohorts:
            assert self._rows is not None
            goes_on = ~self._rows.ended[begin : begin + cohort.size]
            left = int(goes_on.sum())
            if left <= COMPACT_BELOW * cohort.size:
                lines = goes_on.nonzero().squeeze(-1)
            else:
                lines = torch.arange(cohort.size, device=self._device)
            if left:
                before = begin + lines
                parts.append(Part(cohort.cache, lines, self._rows[before], before))
            begin += cohort.size
        return parts

    def _cohort(self, parts: Sequence[Part]) -> Cohort:
        size = sum(len(part.lines) for part in parts)
        for cohort in self._cohorts:
            if len(parts) == 1 and parts[0].cache is cohort.cache and size == cohort.size:
                return cohort
        shares = []
        for cache, lines, rows, _ in parts:
            first = cache.get_seq_length() - int(rows.position.max())
            shares.append(Share(cache, lines, first))
        return Cohort(gathered(shares), size)

    def _look_ahead(self, rows: BatchRows) -> None:
        """Prepare for as many steps as the rows can have."""
        ahead = self._last - self._steps
        places = torch.split(rows.position, [cohort.size for cohort in self._cohorts])
        for cohort, position in zip(self._cohorts, places, strict=True):
            length = cohort.cache.get_seq_length()
            pads = (length - position)[:, None]
            columns = torch.arange(length + ahead, device=self._device)
            cohort.hidden = columns < pads if bool(pads.any()) else None
        if self._fused:
            pasts = [Past(c.cache, c.size, self._bias(c.hidden)) for c in self._cohorts]
            self._fused.attach(pasts, int(rows.position.max()) + ahead)

    def _bias(self, hidden: Tensor | None) -> Tensor | None:
        if hidden is None:
            return None
        return hidden[:, None, None].to(self._policy.model.dtype) * HIDDEN

    def _forward(self, tokens: Tensor) -> None:
        """Read the tokens ``[B, 1]`` that were sampled."""
        rows = self._rows
        assert rows is not None
        if self._fused:
            rows.logits = self._fused.step(tokens, rows.position)
        else:
            (cohort,) = self._cohorts
            seen = cohort.cache.get_seq_length() + 1
            mask = None if cohort.hidden is None else (~cohort.hidden[:, :seen]).long()
            # Rows that have ended go on until they leave, and may pass the end of the context.
            positions = rows.position.clamp(max=self._policy.context_length - 1)[:, None]
            rows.logits = logits_after(self._policy, tokens, mask, positions, cohort.cache)
        rows.position += 1
        self._unread = 0

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
