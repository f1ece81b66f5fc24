"""A model's way from hidden states to logits, taken for some positions at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

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
