"""One token from each of many distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from node.engines.engine import Sampling


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
        cumulative = drawn.cumsum(-1, dtype=torch.float64)
        point = torch.rand(
            (len(logits), 1), generator=random, dtype=torch.float64, device=random.device
        )
        tokens = torch.searchsorted(cumulative, point.mul_(cumulative[:, -1:]), right=True)
        tokens = tokens.clamp_(max=logits.shape[-1] - 1).to(logits.device)
    return tokens, distribution.gather(-1, tokens)
