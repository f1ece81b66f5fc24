"""One token from each of many distributions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from node.engines.engine import Sampling

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
