"""Log-probs of completions under a policy, in float32 whatever the weights are."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from node.learner.batches import MicroBatch


def distributions(model: PreTrainedModel, batch: MicroBatch, temperature: float) -> Tensor:
    """Log-probs of the whole vocabulary at the positions scored, float32 ``[N, V]``.

    Right padding needs no mask: no token of a causal model looks at what comes after it.

    Args:
        temperature: divides the logits, as in sampling.
    """
    apart: dict[str, Tensor | None] = {}
    if batch.segments is not None:
        bias = completion_bias(batch.segments, model.dtype)
        apart = {"attention_mask": bias, "position_ids": batch.position_ids}
    output = model(input_ids=batch.input_ids, use_cache=False, logits_to_keep=batch.kept, **apart)
    # Not every model honours logits_to_keep.
    logits: Tensor = output.logits[:, -batch.kept :].flatten(0, 1)
    logits = logits.index_select(0, batch.scored).float()
    if temperature != 1.0:
        logits = logits / temperature
    return logits.log_softmax(-1)


def token_logprobs(distribution: Tensor, batch: MicroBatch) -> Tensor:
    """Log-probs of the completions' tokens, float32 ``[C, T]``; of no meaning where not trained.

    ``distribution`` is that of :func:`distributions`.
    """
    # A gather, as the gradients of tokens that share a source then add up in a fixed order.
    flat = batch.source * distribution.shape[-1] + batch.targets
    return distribution.flatten().gather(0, flat.flatten()).view_as(flat)


@torch.no_grad()
def token_entropies(distribution: Tensor, batch: MicroBatch) -> Tensor:
    """Entropy (nats) of the distributions that the tokens come from, float32 ``[C, T]``."""
    return -(distribution.exp() * distribution).sum(-1)[batch.source]


def completion_bias(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores: zero where a token may look, else the least number.

    A token sees what lies before it in the prompt and in its own completion.

    Args:
        segments: int64 ``[B, L]``, see :class:`node.learner.batches.MicroBatch`.
        dtype: of the model.

    Returns:
        ``[B, 1, L, L]``, queries before keys.
    """
    length = segments.shape[1]
    hidden = (segments[:, None] != segments[:, :, None]) & (segments[:, None] != 0)
    later = torch.ones(length, length, dtype=torch.bool, device=segments.device).triu(1)
    bias = torch.zeros(hidden.shape, dtype=dtype, device=segments.device)
    return bias.masked_fill(hidden | later, torch.finfo(dtype).min)[:, None]
