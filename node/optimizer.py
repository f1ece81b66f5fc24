"""AdamW on float32 master weights, with warm-up and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

HALF_LOSS_SCALE = 1024.0


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW (arXiv:1711.05101) behind a linear warm-up of ``warmup_steps`` steps."""

    lr: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    warmup_steps: int


class Optimizer:
    """Steps a model's parameters.

    Weights in half precision get a float32 master copy: a step of 1e-6 is smaller than their
    rounding and would be lost. float16 gradients are scaled up on their way through the model.
    """

    def __init__(self, parameters: Iterable[Parameter], config: OptimizerConfig) -> None:
        self._weights = [p for p in parameters if p.requires_grad]
        self._config = config
        self._copied = any(p.dtype != torch.float32 for p in self._weights)
        self._masters: list[Tensor] = (
            [p.detach().float() for p in self._weights] if self._copied else list(self._weights)
        )
        half = any(p.dtype == torch.float16 for p in self._weights)
        self._scale = HALF_LOSS_SCALE if half else 1.0
        self._adam = torch.optim.AdamW(
            self._masters,
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=self._weights[0].device.type in ("cpu", "cuda"),
        )
        self.steps = 0

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        warmup = max(1, self._config.warmup_steps)
        return self._config.lr * min(1.0, (self.steps + 1) / warmup)

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to what the next step takes."""
        torch.autograd.backward(loss if self._scale == 1.0 else loss * self._scale)
        if not self._copied:
            return
        for master, weight in zip(self._masters, self._weights, strict=True):
            if weight.grad is None:
                continue
            gradient = weight.grad.float().div_(self._scale)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            weight.grad = None

    def clip(self) -> Tensor:
        """Scale the gradient down to ``max_grad_norm``; returns its norm before that, a scalar."""
        return torch.nn.utils.clip_grad_norm_(self._masters, self._config.max_grad_norm)

    def step(self) -> None:
        """Move the weights and forget the gradient."""
        for group in self._adam.param_groups:
            group["lr"] = self.lr
        self._adam.step()
        if self._copied:
            with torch.no_grad():
                for master, weight in zip(self._masters, self._weights, strict=True):
                    weight.copy_(master)
        self.steps += 1
        self.discard()

    def discard(self) -> None:
        """Forget the gradient; the weights stay."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model's own weights; tensors are the live ones, as torch's are."""
        masters = [m.detach() for m in self._masters] if self._copied else []
        return {"adam": self._adam.state_dict(), "masters": masters, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; the model's weights must be of the same moment."""
        self._adam.load_state_dict(deepcopy(state["adam"]))
        with torch.no_grad():
            for master, saved in zip(self._masters, state["masters"], strict=self._copied):
                master.copy_(saved)
        self.steps = int(state["steps"])
