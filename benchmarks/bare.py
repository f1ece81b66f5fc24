"""The least that a step can cost: bare generate, and bare forward, backward and AdamW."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from node.learner.batches import MicroBatch
from node.learner.logprobs import distributions, token_logprobs


def seconds(work: Callable[[], Any]) -> float:
    """Wall-clock time of one call, what it leaves to a GPU included."""
    _wait()
    begin = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - begin


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class BareTrainer:
    """Forward, backward and optimizer on a copy of a model, and nothing else.

    Weights in half precision have float32 master weights, as a learner's have: a step of 1e-6
    would be rounded away.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = copy.deepcopy(model)
        self._weights = list(self._model.parameters())
        self._masters = [weight.detach().float() for weight in self._weights]
        self._half = self._weights[0].dtype != torch.float32
        stepped = self._masters if self._half else self._weights
        self._optimizer = torch.optim.AdamW(stepped, lr=1e-6, fused=True)

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """One policy-gradient step."""
        tokens = sum(len(batch.scored) for batch in batches)
        for batch in batches:
            logprobs = token_logprobs(distributions(self._model, batch, 1.0), batch)
            loss = -(logprobs * batch.advantages[:, None] * batch.mask).sum() / tokens
            loss.backward()
            if self._half:
                self._move()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._half:
            with torch.no_grad():
                for weight, master in zip(self._weights, self._masters, strict=True):
                    weight.copy_(master)

    def _move(self) -> None:
        """Add the weights' gradients to those of their master weights."""
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight.grad is None:
                continue
            found = weight.grad.float()
            master.grad = found if master.grad is None else master.grad.add_(found)
            weight.grad = None


def repeated(
    prompts: list[list[int]], n: int, pad_id: int, device: torch.device
) -> dict[str, Tensor]:
    """Return left-padded ids and attention mask, with each prompt ``n`` times."""
    width = max(map(len, prompts))
    pads = torch.tensor([[width - len(prompt)] for prompt in prompts], device=device)
    padded = [[pad_id] * (width - len(prompt)) + prompt for prompt in prompts]
    ids = torch.tensor(padded, device=device)
    mask = (torch.arange(width, device=device) >= pads).long()
    return {
        "input_ids": ids.repeat_interleave(n, 0),
        "attention_mask": mask.repeat_interleave(n, 0),
    }


@torch.inference_mode()
def bare_generate(
    model: PreTrainedModel, prompts: list[list[int]], n: int, tokens: int, pad_id: int
) -> Tensor:
    """``transformers.generate`` for ``n`` completions of each prompt, without log-probs."""
    return model.generate(
        **repeated(prompts, n, pad_id, model.device),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=tokens,
        eos_token_id=model.config.vocab_size,
        pad_token_id=pad_id,
    )
