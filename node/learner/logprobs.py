"""Log-probs of completions under a policy, in float32 whatever the weights are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from node.learner.batches import MicroBatch
from node.learner.chunked_logprobs import Targets, chunked_logprobs
from node.learner.vocabulary_head import VocabularyHead

WHOLE_BYTES = 128 << 20
"""Of a micro-batch's logits in float32, up to which they are computed at once."""


class Scores(NamedTuple):
    """Of the tokens of a micro-batch's completions; of no meaning where not trained.

    Attributes:
        logprobs: float32 ``[C, T]``.
        entropies: float32 ``[C, T]``, nats, of the distributions they come from; no gradient.
            None where they were not asked for.
    """

    logprobs: Tensor
    entropies: Tensor | None


class TokenScores:
    """Scores the tokens of micro-batches under a model, whatever its vocabulary in bounded memory.

    Args:
        temperature: divides the logits, as in sampling.
        tokens: of the largest micro-batch. Where its logits may be more than ``WHOLE_BYTES``, the
            model is asked whether it gives them in parts too.
    """

    def __init__(self, model: PreTrainedModel, temperature: float, tokens: int) -> None:
        self._model = model
        self._temperature = temperature
        self._words: int = model.config.get_text_config().vocab_size
        self._head = VocabularyHead.of(model) if self._large(tokens) else None

    def in_parts(self, tokens: int) -> bool:
        """Whether the logits of so many positions are never all there."""
        return self._head is not None and self._large(tokens)

    def __call__(self, batch: MicroBatch, *, entropies: bool = True, whole: bool = False) -> Scores:
        """Differentiable by ``backward`` (see :func:`chunked_logprobs`).

        Args:
            whole: at once, as is needed by what listens to the model's modules.
        """
        if self._head and not whole and self._large(len(batch.input_ids) * batch.kept):
            logprobs, spread = self._chunked(batch, self._head)
            return Scores(logprobs, spread if entropies else None)
        distribution = distributions(self._model, batch, self._temperature)
        logprobs = token_logprobs(distribution, batch)
        return Scores(logprobs, token_entropies(distribution, batch) if entropies else None)

    def _large(self, tokens: int) -> bool:
        return 4 * self._words * tokens > WHOLE_BYTES

    def _chunked(self, batch: MicroBatch, head: VocabularyHead) -> tuple[Tensor, Tensor]:
        hidden = head.hidden(batch.input_ids, _placed(self._model, batch))[:, -batch.kept :]
        mask = batch.mask
        places, order = batch.source[mask].sort(stable=True)
        logprobs, entropies = chunked_logprobs(
            hidden.flatten(0, 1).index_select(0, batch.scored),
            Targets(places, batch.targets[mask][order]),
            head,
            self._temperature,
        )
        lines = torch.zeros(mask.shape, device=mask.device)
        return lines.masked_scatter(mask, logprobs[order.argsort()]), entropies[batch.source]


def distributions(model: PreTrainedModel, batch: MicroBatch, temperature: float) -> Tensor:
    """Log-probs of the whole vocabulary at the positions scored, float32 ``[N, V]``.

    Right padding needs no mask: no token of a causal model looks at what comes after it.

    Args:
        temperature: divides the logits, as in sampling.
    """
    apart = _placed(model, batch)
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


def _placed(model: PreTrainedModel, batch: MicroBatch) -> dict[str, Tensor | None]:
    """What keeps completions apart that share a row."""
    if batch.segments is None:
        return {}
    bias = completion_bias(batch.segments, model.dtype)
    return {"attention_mask": bias, "position_ids": batch.position_ids}
