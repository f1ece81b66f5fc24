"""Log-probs of completions under a policy, in float32 whatever the weights are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from node.learner.batches import MicroBatch

log = logging.getLogger(__name__)

PROBE = 4
"""Tokens that the check at the start reads."""
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Of the largest logit, by which two ways to the same logits may differ."""


class VocabularyHead:
    """Splits the model's forward pass in front of its output matrix.

    What the model does to logits (soft caps, scales, adapters) is done by its own ``forward``, in
    which hidden states that are already there take the place of the decoder's.

    Args:
        model: a causal language model whose ``base_model`` returns ``last_hidden_state``.

    Attributes:
        words: in the vocabulary.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._base = model.base_model
        self._output: type[ModelOutput] | None = None
        self.words: int = model.config.get_text_config().vocab_size

    @classmethod
    def of(cls, model: PreTrainedModel) -> VocabularyHead | None:
        """The head of a model, None and a warning where it gives other logits than the model."""
        head = cls(model)
        if (reason := head._differs()) is None:
            return head
        log.warning(
            "%s: its logits cannot be computed in parts (%s); an update holds them all at once, "
            "and learner.micro_batch_tokens bounds what they take",
            type(model).__name__,
            reason,
        )
        return None

    def hidden(self, ids: Tensor, inputs: Mapping[str, Tensor | None]) -> Tensor:
        """What the decoder says of every token, ``[B, L, H]``.

        Through the whole model, whose own hooks gather what is spread over ranks; it computes the
        logits of each row's last position alone.
        """
        return self._read(ids, inputs, 1)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[N, V]`` of hidden states ``[N, H]``, in the model's dtype."""
        assert self._output is not None
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        with self._saying(self._output(last_hidden_state=hidden[None])):
            output = self._model.forward(input_ids=ids, use_cache=False, logits_to_keep=0)
        return cast(Tensor, output.logits[0])

    def _read(
        self, ids: Tensor, inputs: Mapping[str, Tensor | None], kept: int
    ) -> tuple[Tensor, Tensor]:
        said: list[Any] = []
        handle = self._base.register_forward_hook(lambda *given: said.append(given[2]))
        try:
            output = self._model(input_ids=ids, use_cache=False, logits_to_keep=kept, **inputs)
        finally:
            handle.remove()
        (once,) = said
        self._output = type(once)
        return once.last_hidden_state, output.logits

    @contextmanager
    def _saying(self, output: ModelOutput) -> Iterator[None]:
        """In the block the decoder computes nothing and returns this."""
        base = cast(Any, self._base)
        base.forward = lambda *_, **__: output
        try:
            yield
        finally:
            del base.forward  # the class's own is behind it

    @torch.no_grad()
    def _differs(self) -> str | None:
        """Why the parts are not the model's own logits."""
        ids = torch.arange(PROBE, device=self._model.device)[None] % self.words
        try:
            hidden, expected = self._read(ids, {}, PROBE)
            found = self.logits(hidden[0])
        except torch.OutOfMemoryError:
            raise  # says nothing of the model, and other ranks would wait for this one
        except (AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        expected = expected[0]
        if found.shape != expected.shape:
            return f"shapes {tuple(found.shape)} and {tuple(expected.shape)}"
        gap = float((found - expected).float().abs().max())
        most = ROUNDING[expected.dtype] * max(1.0, float(expected.float().abs().max()))
        return None if gap <= most else f"they differ by {gap:.2g}"


CHUNK_BYTES = 32 << 20
"""Of the logits that are there at once, in float32; about four times as much is held."""
LEAST_POSITIONS = 128
"""In a part, since each adds to the gradient of the whole output matrix."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens by the positions that predict them.

    Attributes:
        places: int64 ``[K]``, ascending, of ``N`` positions.
        ids: int64 ``[K]``.
    """

    places: Tensor
    ids: Tensor

    def within(self, begin: int, end: int) -> tuple[slice, Tensor, Tensor]:
        """Which are predicted from ``begin`` up to ``end``; places from there on, and ids."""
        bounds = torch.tensor((begin, end), device=self.places.device)
        first, last = torch.searchsorted(self.places, bounds).tolist()
        which = slice(first, last)
        return which, self.places[which] - begin, self.ids[which]


def chunked_logprobs(
    hidden: Tensor, targets: Targets, head: VocabularyHead, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, float32 ``[K]``, and entropies, float32 ``[N]`` without gradient.

    A backward pass adds to the ``grad`` of the head's weights directly: ``torch.autograd.grad``
    does not see them.

    Args:
        hidden: ``[N, H]``.
        temperature: divides the logits.
    """
    found: tuple[Tensor, Tensor]
    found = _Chunked.apply(hidden, targets, head, temperature)  # type: ignore[no-untyped-call]
    return found


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, targets: Targets, head: VocabularyHead, temperature: float
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden)
        ctx.rest = targets, head, temperature
        logprobs = hidden.new_empty(len(targets.ids), dtype=torch.float32)
        entropies = hidden.new_empty(len(hidden), dtype=torch.float32)
        for begin, part in _parts(hidden, head):
            which, places, ids = targets.within(begin, begin + len(part))
            distribution = _tempered(head.logits(part), temperature).log_softmax(-1)
            logprobs[which] = distribution[places, ids]
            entropies[begin : begin + len(part)] = -(distribution.exp().mul_(distribution)).sum(-1)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (hidden,) = ctx.saved_tensors
        targets, head, temperature = ctx.rest
        back = torch.empty_like(hidden)
        for begin, part in _parts(hidden, head):
            which, places, ids = targets.within(begin, begin + len(part))
            with torch.enable_grad():
                read = part.detach().requires_grad_()
                logits = head.logits(read)
            slope = _slope(logits.detach(), places, ids, gradient[which], temperature)
            torch.autograd.backward(logits, slope)
            assert read.grad is not None
            back[begin : begin + len(part)] = read.grad
        return back, None, None, None


def _slope(
    logits: Tensor, places: Tensor, ids: Tensor, gradient: Tensor, temperature: float
) -> Tensor:
    """The loss's gradient in logits ``[n, V]``, by that in the log-probs of the tokens."""
    total = gradient.new_zeros(len(logits)).index_add_(0, places, gradient)
    slope = _tempered(logits, temperature).softmax(-1).mul_(-total[:, None])
    slope.flatten().scatter_add_(0, places * logits.shape[-1] + ids, gradient)
    return (slope if temperature == 1.0 else slope.div_(temperature)).to(logits.dtype)


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _parts(hidden: Tensor, head: VocabularyHead) -> Iterator[tuple[int, Tensor]]:
    size = max(LEAST_POSITIONS, CHUNK_BYTES // (4 * head.words))
    begin = 0
    for part in torch.split(hidden, size):
        yield begin, part
        begin += len(part)


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
