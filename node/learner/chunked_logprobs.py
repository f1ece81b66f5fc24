"""Log-probs and entropies of tokens whose logits are never all there at once.

The logits of a long batch over a large vocabulary take more memory than all else in an update. They
are computed for some positions at a time, and once more in the backward pass, where each part's
gradient goes on into the output matrix and the hidden states before the next part is computed
(as in Liger Kernel, arXiv:2410.10989, and Cut Cross-Entropy, arXiv:2411.09009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.learner.vocabulary_head import VocabularyHead

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
