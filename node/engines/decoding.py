"""One batch of rows on its way from prompts to completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from node.engines.engine import Sampling
from node.engines.fused_decoder import FusedDecoder, fits
from node.engines.growing_cache import growing_cache
from node.policy import Policy

CHECK_EVERY_ON_GPU = 8
COMPACT_BELOW = 0.75
HIDDEN = -1e4


def draw(logits: Tensor, sampling: Sampling, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row, and its log-prob under the distribution it was drawn from.

    Inverts the cumulative distribution in float64: one random number a row, and no bias in large
    vocabularies.

    Args:
        logits: ``[B, V]``.

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
        cumulative = distribution.exp().cumsum(-1, dtype=torch.float64)
        point = torch.rand(
            (len(logits), 1), generator=random, dtype=torch.float64, device=logits.device
        )
        tokens = torch.searchsorted(cumulative, point.mul_(cumulative[:, -1:]), right=True)
        tokens.clamp_(max=logits.shape[-1] - 1)
    return tokens, distribution.gather(-1, tokens)


class Decoding:
    """Prompts are read once each, left-padded, and their cache is repeated for their rows.

    Args:
        prompts: token ids.
        rows: how many completions of each prompt; together they are the ``B`` rows, in order.
        caps: for each of the ``B`` rows, the most tokens to sample.

    Attributes:
        ids: int64 ``[B, cap]``, sampled tokens; what follows a row's end is meaningless.
        logprobs: float32 ``[B, cap]``, of the sampled tokens.
        sampled: tokens sampled so far in every row that is left.
        left: rows that had not ended when it was last looked at: at every step on a CPU, at
            every eighth elsewhere.
        live: whether anything is left to sample.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        rows: Sequence[int],
        caps: Sequence[int],
    ) -> None:
        device, longest, cap = policy.device, max(map(len, prompts)), max(caps)
        self._policy = policy
        self._check_every = 1 if device.type == "cpu" else CHECK_EVERY_ON_GPU
        self._stop = torch.tensor(policy.stop_ids, device=device)
        self._caps = torch.tensor(caps, device=device)
        self._rows = torch.arange(len(caps), device=device)
        self._finished = torch.zeros_like(self._rows, dtype=torch.bool)
        self._cache = growing_cache(policy.model.config)
        self._unsaved: list[tuple[Tensor, Tensor]] = []
        self.sampled = 0
        self.left = len(caps)
        self.ids = self._rows.new_zeros((len(self._rows), cap))
        self.logprobs = torch.zeros_like(self.ids, dtype=torch.float32)
        self.live = True

        pads = torch.tensor([[longest - len(prompt)] for prompt in prompts], device=device)
        columns = torch.arange(longest + cap, device=device)
        self._positions = (columns - pads).clamp_(0, policy.context_length - 1)
        self._mask = (columns >= pads).long() if bool(pads.any()) else None
        self._bias: Tensor | None = None
        self._fused: FusedDecoder | None = None
        padded = [[policy.pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        first = self._forward(torch.tensor(padded, device=device))
        repeated = torch.arange(len(prompts), device=device).repeat_interleave(
            torch.tensor(rows, device=device)
        )
        self._logits = first[repeated]
        self._keep(repeated)
        if fits(policy.model, self._cache):
            self._fused = FusedDecoder(policy.model, self._cache, longest + cap)

    def step(self, sampling: Sampling, random: torch.Generator) -> None:
        """Sample one token of every row that is still in the batch."""
        tokens, logprobs = draw(self._logits, sampling, random)
        self._unsaved.append((tokens, logprobs))
        self.sampled += 1
        self._finished |= (tokens == self._stop).any(-1) | (self._caps == self.sampled)
        if self.sampled == self.ids.shape[1]:
            self.live, self.left = False, 0
        elif self.sampled % self._check_every == 0:
            tokens = self._drop_finished(tokens)
        if self.live:
            self._logits = self._forward(tokens)
        else:
            self.save()

    def going(self) -> set[int]:
        """Rows that have not ended."""
        return set(self._rows[~self._finished].tolist()) if self.live else set()

    def save(self) -> None:
        """Bring ``ids`` and ``logprobs`` up to date, which otherwise happens at the end."""
        if not self._unsaved:
            return
        tokens, logprobs = zip(*self._unsaved, strict=True)
        columns = slice(self.sampled - len(tokens), self.sampled)
        self.ids[self._rows, columns] = torch.cat(tokens, 1)
        self.logprobs[self._rows, columns] = torch.cat(logprobs, 1)
        self._unsaved.clear()

    def _forward(self, ids: Tensor) -> Tensor:
        """Logits ``[B, V]`` after the tokens ``[B, t]``."""
        start = self._cache.get_seq_length()
        seen = start + ids.shape[1]
        if self._fused is not None:
            bias = None if self._bias is None else self._bias[..., :seen]
            return self._fused.step(ids, self._positions[:, start], bias)
        output: Any = self._policy.model(
            input_ids=ids,
            attention_mask=None if self._mask is None else self._mask[:, :seen],
            position_ids=self._positions[:, start:seen],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cast(Tensor, output.logits[:, -1])

    def _drop_finished(self, tokens: Tensor) -> Tensor:
        """Let finished rows go once they are worth a copy of the cache."""
        self.left = len(self._finished) - int(self._finished.sum())
        self.live = self.left > 0
        if not self.live or self.left > COMPACT_BELOW * len(self._finished):
            return tokens
        self.save()
        stay = (~self._finished).nonzero().squeeze(-1)
        self._rows, self._finished = self._rows[stay], self._finished[stay]
        self._caps = self._caps[stay]
        self._keep(stay)
        return tokens[stay]

    def _keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(cast(torch.LongTensor, rows))
        self._positions = self._positions[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]
            self._bias = (1.0 - self._mask[:, None, None].to(self._logits.dtype)) * HIDDEN
