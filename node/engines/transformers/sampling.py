"""Drawing tokens from logits, without bias in large vocabularies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from node.engines.engine import Sampling

MANY_WORDS, BLOCK = 1 << 14, 256  # vocabulary size from which a block is sampled first; its size


def sample_tokens(
    logits: Tensor, sampling: Sampling, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sample one token per row from ``logits [B, V]``: int64 and float32 log-prob ``[B, 1]``.

    Tokens are drawn on the device of ``random``, which must have 64-bit numbers.
    """
    point = None
    if not sampling.greedy:
        shape, device = (len(logits), 1), random.device
        point = torch.rand(shape, generator=random, dtype=torch.float64, device=device)
    return tokens_at(logits, sampling, point)


def tokens_at(logits: Tensor, sampling: Sampling, point: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the tokens that ``point``, float64 ``[B, 1]`` in [0, 1), picks, and their log-probs.

    Inverts the cumulative distribution in float64: one random number per row, and no bias in large
    vocabularies. None is for greedy sampling.
    """
    logits = logits.float()
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    distribution = logits.log_softmax(-1)
    if point is None or sampling.greedy:
        tokens = distribution.argmax(-1, keepdim=True)
    else:
        drawn = distribution.exp().to(point.device)
        tokens = _inverted(drawn, point).clamp_(max=logits.shape[-1] - 1).to(logits.device)
    return tokens, distribution.gather(-1, tokens)


def _inverted(drawn: Tensor, point: Tensor) -> Tensor:
    """Return where unnormalized ``drawn [B, V]`` reaches its share ``point [B, 1]``."""
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
