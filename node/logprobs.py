"""Log-probs of given tokens under a policy, in float32 whatever the weights are."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel


def token_logprobs(
    model: PreTrainedModel, input_ids: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Score the last ``T`` tokens of right-padded rows.

    Right padding needs no attention mask: no token of a causal model looks at what comes after it.

    Args:
        input_ids: int64 ``[B, L]``.
        targets: int64 ``[B, T]``, equal to ``input_ids[:, -T:]``; ``T < L``.
        temperature: divides the logits, as in sampling.

    Returns:
        log-probs of the targets, float32 ``[B, T]``, and the entropy (nats) of the distribution
        at each of them, float32 ``[B, T]`` without gradient.
    """
    kept = targets.shape[1] + 1
    output = model(input_ids=input_ids, use_cache=False, logits_to_keep=kept)
    logits = output.logits[:, -kept:-1].float()
    if temperature != 1.0:
        logits = logits / temperature
    distribution = logits.log_softmax(-1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, targets[..., None]).squeeze(-1), entropy
