"""Log-probs and entropies of completions, in float32 for any dtype of the weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from node.learner.batches import MicroBatch
from node.learner.group_norms import GroupNorms
from node.learner.micro_batching import NoCache, of_memory, takes_no_cache
from node.policy.fast_layers import UnpackedAttention

log = logging.getLogger(__name__)

PROBE = 4  # Tokens of the check at the start.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Tolerance between both ways to compute logits, relative to the largest logit."""


class VocabularyHead:
    """Split of a causal language model's forward pass before its output matrix.

    The model's own ``forward`` applies soft caps, scales and adapters to the logits; in it,
    precomputed hidden states replace its ``base_model``'s output.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._base = model.base_model
        self._output: type[ModelOutput] | None = None
        self.words: int = model.config.get_text_config().vocab_size

    @classmethod
    def of(cls, model: PreTrainedModel) -> VocabularyHead | None:
        """Return a model's head; None and a warning if its logits are not the model's."""
        head = cls(model)
        if (reason := head._differs()) is None:
            return head
        log.warning(
            "%s: its logits cannot be computed in parts (%s), so an update holds all of them; "
            "learner.micro_batch_tokens limits their memory",
            type(model).__name__,
            reason,
        )
        return None

    def hidden(self, ids: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Run the whole model, whose hooks gather shards; return its output ``[B, L, H]``."""
        return self._read(ids, inputs, 1)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits ``[N, V]`` of hidden states ``[N, H]``, in the model's dtype."""
        assert self._output is not None
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        with self._saying(self._output(last_hidden_state=hidden[None])):
            output = self._model.forward(input_ids=ids, use_cache=False, logits_to_keep=0)
        return cast(Tensor, output.logits[0])

    def _read(self, ids: Tensor, inputs: Mapping[str, Any], kept: int) -> tuple[Tensor, Tensor]:
        outputs: list[Any] = []
        handle = self._base.register_forward_hook(lambda *args: outputs.append(args[2]))
        try:
            output = self._model(input_ids=ids, use_cache=False, logits_to_keep=kept, **inputs)
        finally:
            handle.remove()
        (base_out,) = outputs
        self._output = type(base_out)
        return base_out.last_hidden_state, output.logits

    @contextmanager
    def _saying(self, output: ModelOutput) -> Iterator[None]:
        base = cast(Any, self._base)
        base.forward = lambda *_, **__: output
        try:
            yield
        finally:
            del base.forward  # restores the class's method

    @torch.no_grad()
    def _differs(self) -> str | None:
        ids = torch.arange(PROBE, device=self._model.device)[None] % self.words
        try:
            hidden, expected = self._read(ids, {}, PROBE)
            logits = self.logits(hidden[0])
        except (AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
            if of_memory(error):
                raise  # not a property of the model, and other ranks would wait
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        expected = expected[0]
        if logits.shape != expected.shape:
            return f"shapes {tuple(logits.shape)} and {tuple(expected.shape)}"
        diff = torch.where(logits == expected, 0.0, (logits - expected).float())
        max_diff = float(diff.abs().max())
        finite = torch.where(expected.isfinite(), expected, 0.0).float()
        tolerance = ROUNDING[expected.dtype] * max(1.0, float(finite.abs().max()))
        return None if max_diff <= tolerance else f"they differ by {max_diff:.2g}"


CHUNK_BYTES = 32 << 20  # Float32 logits computed at a time; peak memory is about four times that.
LEAST_POSITIONS = 128  # Per chunk, because each adds to the whole output matrix's gradient.
WHOLE_BYTES = 128 << 20  # Maximum float32 logits of a micro-batch without chunks.
GPU_BYTES = 256 << 20
"""Both of these on a GPU, where launches and reads of that gradient cost more than memory."""


def chunk_bytes(device: str) -> int:
    """Return the bytes of float32 logits to compute at a time on a ``cpu`` or ``cuda``."""
    return GPU_BYTES if device == "cuda" else CHUNK_BYTES


def whole_bytes(device: str) -> int:
    """Return the most bytes of float32 logits to hold at once."""
    return GPU_BYTES if device == "cuda" else WHOLE_BYTES


@dataclass(frozen=True, slots=True)
class Targets:
    """Target tokens ``ids`` and ascending ``places`` that predict them, int64 ``[K]``.

    ``host`` has the places in main memory, so that no bound waits for a GPU.
    """

    places: Tensor
    ids: Tensor
    host: NDArray[np.int64]

    def within(self, begin: int, end: int) -> tuple[slice, Tensor, Tensor]:
        """Return targets of positions ``begin`` to ``end``: slice, relative places, ids."""
        first, last = np.searchsorted(self.host, (begin, end))
        span = slice(first, last)
        return span, self.places[span] - begin, self.ids[span]


class _Chunked(torch.autograd.Function):
    """Log-probs, float32 ``[K]``, and entropies, float32 ``[N]``, in chunks.

    ``hidden`` is ``[N, H]``. Entropies have no gradient. A backward pass adds to the ``grad`` of
    the head's weights directly: ``torch.autograd.grad`` does not see them. ``norms`` measures each
    group's gradient there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        targets: Targets,
        head: VocabularyHead,
        temperature: float,
        norms: GroupNorms | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden)
        ctx.rest = targets, head, temperature, norms
        logprobs = hidden.new_empty(len(targets.ids), dtype=torch.float32)
        entropies = hidden.new_empty(len(hidden), dtype=torch.float32)
        for begin, chunk, _ in _parts(hidden, head, norms):
            span, positions, ids = targets.within(begin, begin + len(chunk))
            all_logprobs = _tempered(head.logits(chunk), temperature).log_softmax(-1)
            logprobs[span] = all_logprobs[positions, ids]
            terms = all_logprobs.exp().mul_(all_logprobs.clamp_(min=LOWEST))
            entropies[begin : begin + len(chunk)] = -terms.sum(-1)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,) = ctx.saved_tensors
        targets, head, temperature, norms = ctx.rest
        grad_input = torch.empty_like(hidden)
        for begin, chunk, context in _parts(hidden, head, norms):
            span, positions, ids = targets.within(begin, begin + len(chunk))
            with torch.enable_grad(), context:
                leaf = chunk.detach().requires_grad_()
                logits = head.logits(leaf)
            grad_logits = _slope(logits.detach(), positions, ids, gradient[span], temperature)
            torch.autograd.backward(logits, grad_logits)
            assert leaf.grad is not None
            grad_input[begin : begin + len(chunk)] = leaf.grad
        return grad_input, None, None, None, None


def _slope(
    logits: Tensor, positions: Tensor, ids: Tensor, gradient: Tensor, temperature: float
) -> Tensor:
    total = gradient.new_zeros(len(logits)).index_add_(0, positions, gradient)
    grad_logits = _tempered(logits, temperature).softmax(-1).mul_(-total[:, None])
    grad_logits.flatten().scatter_add_(0, positions * logits.shape[-1] + ids, gradient)
    return (grad_logits if temperature == 1.0 else grad_logits.div_(temperature)).to(logits.dtype)


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _parts(
    hidden: Tensor, head: VocabularyHead, norms: GroupNorms | None
) -> Iterator[tuple[int, Tensor, AbstractContextManager[None]]]:
    """Return the chunks in order, of one group each if groups are measured."""
    size = max(LEAST_POSITIONS, chunk_bytes(hidden.device.type) // (4 * head.words))
    end = 0
    for group, count in enumerate(norms.layout.scored if norms else [len(hidden)]):
        begin, end = end, end + count
        for first in range(begin, end, size):
            last = min(end, first + size)
            context = norms.piece(group, last=last == end) if norms else nullcontext()
            yield first, hidden[first:last], context


ALIGNED = 8  # elements
LOWEST = torch.finfo(torch.float32).min  # replaces -inf, because 0 * -inf is NaN


class TokenLogprobs(NamedTuple):
    """Scores of a micro-batch's completion tokens, float32 ``[C, T]``.

    Undefined where not trained. ``entropies`` are in nats, without gradient, if requested.
    """

    logprobs: Tensor
    entropies: Tensor | None


class TokenScores:
    """Scorer of micro-batches, in bounded memory for any vocabulary size.

    ``temperature`` divides the logits. If the logits of ``tokens``, the largest micro-batch, may
    exceed :func:`whole_bytes`, the model is checked for chunked logits.
    """

    def __init__(self, model: PreTrainedModel, temperature: float, tokens: int) -> None:
        self._model = model
        self._temperature = temperature
        self._words: int = model.config.get_text_config().vocab_size
        self._head = VocabularyHead.of(model) if self._large(tokens) else None
        self._cache = NoCache() if takes_no_cache(model) else None

    def in_parts(self, tokens: int) -> bool:
        """Return whether logits of this many positions are computed in chunks."""
        return self._head is not None and self._large(tokens)

    def __call__(
        self,
        batch: MicroBatch,
        *,
        entropies: bool = True,
        whole: bool = False,
        norms: GroupNorms | None = None,
    ) -> TokenLogprobs:
        """Score a micro-batch, differentiable.

        ``whole`` disables chunks, as hooks need; ``norms`` measures the groups' gradients.
        """
        if self._head and not whole and self._large(len(batch.input_ids) * batch.kept):
            logprobs, entropy = self._chunked(batch, self._head, norms)
            return TokenLogprobs(logprobs, entropy if entropies else None)
        all_logprobs = distributions(self._model, batch, self._temperature, self._cache)
        logprobs = token_logprobs(all_logprobs, batch)
        return TokenLogprobs(logprobs, token_entropies(all_logprobs, batch) if entropies else None)

    def _large(self, tokens: int) -> bool:
        return 4 * self._words * tokens > whole_bytes(self._model.device.type)

    def _chunked(
        self, batch: MicroBatch, head: VocabularyHead, norms: GroupNorms | None
    ) -> tuple[Tensor, Tensor]:
        kwargs = _placed(self._model, batch, self._cache)
        hidden = head.hidden(batch.input_ids, kwargs)[:, -batch.kept :]
        positions, ids = (each.flatten()[batch.trained] for each in (batch.source, batch.targets))
        logprobs, entropies = _Chunked.apply(  # type: ignore[no-untyped-call]
            hidden.flatten(0, 1).index_select(0, batch.scored),
            Targets(positions, ids, batch.host_sources),
            head,
            self._temperature,
            norms,
        )
        padded = torch.zeros(batch.mask.numel(), device=hidden.device)
        padded = padded.index_copy(0, batch.trained, logprobs).view_as(batch.mask)
        return padded, entropies[batch.source]


def distributions(
    model: PreTrainedModel, batch: MicroBatch, temperature: float, cache: NoCache | None = None
) -> Tensor:
    """Return the vocabulary's log-probs at scored positions, float32 ``[N, V]``.

    Right padding needs no mask: tokens of a causal model do not see later ones. ``cache`` is for
    models that :func:`node.learner.micro_batching.takes_no_cache`.
    """
    kwargs = _placed(model, batch, cache)
    output = model(input_ids=batch.input_ids, use_cache=False, logits_to_keep=batch.kept, **kwargs)
    # Some models ignore logits_to_keep.
    logits: Tensor = output.logits[:, -batch.kept :].flatten(0, 1)
    return _tempered(logits.index_select(0, batch.scored), temperature).log_softmax(-1)


def token_logprobs(distribution: Tensor, batch: MicroBatch) -> Tensor:
    """Return tokens' log-probs, float32 ``[C, T]``, from :func:`distributions`."""
    # With gather, gradients of tokens that share a source add up in a fixed order.
    indices = batch.source * distribution.shape[-1] + batch.targets
    return distribution.flatten().gather(0, indices.flatten()).view_as(indices)


@torch.no_grad()
def token_entropies(distribution: Tensor, batch: MicroBatch) -> Tensor:
    """Return entropies (nats) of the tokens' distributions, float32 ``[C, T]``."""
    return -distribution.clamp(min=LOWEST).mul_(distribution.exp()).sum(-1)[batch.source]


def completion_bias(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Return attention biases ``[B, 1, L, L]``: zero if visible, else the minimum.

    A token sees earlier tokens of the prompt and of its own completion (``segments``). Lines begin
    at multiples of ``ALIGNED``, or a GPU's kernel would copy the biases in every layer.
    """
    length = segments.shape[1]
    hidden = (segments[:, None] != segments[:, :, None]) & (segments[:, None] != 0)
    later = torch.ones(length, length, dtype=torch.bool, device=segments.device).triu(1)
    width = -(-length // ALIGNED) * ALIGNED
    bias = torch.zeros((len(segments), length, width), dtype=dtype, device=segments.device)
    bias = bias[..., :length].masked_fill_(hidden | later, torch.finfo(dtype).min)
    return bias[:, None]


def _placed(model: PreTrainedModel, batch: MicroBatch, cache: NoCache | None) -> dict[str, Any]:
    if batch.segments is not None:
        bias = completion_bias(batch.segments, model.dtype)
        return {"attention_mask": bias, "position_ids": batch.position_ids}
    if batch.unpacking is not None:
        UnpackedAttention.install()  # again, in case that a library has replaced it
        kwargs = {"position_ids": batch.position_ids, "unpacking": batch.unpacking}
        return kwargs | {"past_key_values": NoCache()}
    return {} if cache is None else {"past_key_values": cache}
