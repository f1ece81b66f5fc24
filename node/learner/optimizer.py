"""AdamW on float32 master weights: 8-bit moments, offload, warm-up, clipping."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from node.config.learning import LearnerSection
from node.errors import ConfigError

BLOCK = 256  # Weights that share a scale in bitsandbytes.
SLAB = 1 << 17  # weights per CPU step: bitsandbytes makes float32 temporaries of its input


def eight_bit_adam(masters: Sequence[Tensor], config: LearnerSection) -> torch.optim.Optimizer:
    """Create bitsandbytes' ``AdamW8bit`` (arXiv:2110.02861), or raise ConfigError."""
    try:
        library: Any = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise ConfigError(
            "learner.optimizer",
            config.optimizer,
            f"bitsandbytes cannot be loaded ({error}): run pip install '.[adamw8bit]' in the "
            "clone, or set learner.optimizer = 'adamw'.",
        ) from error

    class Slabwise(library.AdamW8bit):  # type: ignore[misc]
        """AdamW8bit in slabs; moments, scales and weights are the same as without."""

        def update_step(self, group: Any, p: Tensor, gindex: int, pindex: int) -> None:
            state = self.state[p]
            if p.device.type != "cpu" or p.numel() <= SLAB or state["state1"].dtype != torch.uint8:
                super().update_step(group, p, gindex, pindex)
                return
            assert p.grad is not None
            for begin in range(0, p.numel(), SLAB):
                slab, slab_state = _slab(p, state, begin)
                self.state[slab] = slab_state
                super().update_step(group, slab, gindex, pindex)
                del self.state[slab]
            state["step"] += 1

    adam: torch.optim.Optimizer = Slabwise(
        list(masters), lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay
    )
    return adam


def _slab(p: Tensor, state: dict[str, Any], begin: int) -> tuple[Parameter, dict[str, Any]]:
    assert p.grad is not None
    weights, scales = slice(begin, begin + SLAB), slice(begin // BLOCK, (begin + SLAB) // BLOCK)
    slab = Parameter(p.detach().view(-1)[weights], requires_grad=False)
    slab.grad = p.grad.reshape(-1)[weights]
    views = {name: state[name].view(-1)[weights] for name in ("state1", "state2")}
    views |= {name: state[name][scales] for name in ("absmax1", "absmax2")}
    return slab, state | views


HALF_LOSS_SCALE = 1024.0
SLAB_BYTES = 16 << 20  # Float32 bytes of a half-precision gradient that are added together.


class Optimizer:
    """AdamW (arXiv:1711.05101) with a linear warm-up on a model's parameters.

    The two moments are float32, or 8-bit in blocks (arXiv:2110.02861). With ``offload`` moments,
    gradients and float32 weights are in main memory and the step runs there (ZeRO-Offload,
    arXiv:2101.06840). Half-precision and offloaded weights get a float32 master copy: half
    precision would round a step of 1e-6 away. float16 losses are scaled up.
    """

    def __init__(self, parameters: Iterable[Parameter], config: LearnerSection) -> None:
        parameters = list(parameters)
        self._weights: list[Tensor] = [p for p in parameters if p.requires_grad]
        self._config = config
        # Float32 weights that train beside frozen half-precision ones are not duplicated.
        self._copied = config.offload or any(p.dtype != torch.float32 for p in parameters)
        # Tensors that are stepped; `backward` adds to their `grad`.
        self.masters: list[Tensor] = (
            [self._moved(p.detach(), copy=config.offload) for p in self._weights]
            if self._copied
            else list(self._weights)
        )
        self.scale = HALF_LOSS_SCALE if any(p.dtype == torch.float16 for p in parameters) else 1.0
        self.adam = _adam(self.masters, config)
        self.steps = 0

    @property
    def lr(self) -> float:
        return self._config.lr * min(1.0, (self.steps + 1) / max(1, self._config.warmup_steps))

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to the next step's, moving one weight's at a time."""
        loss = loss if self.scale == 1.0 else loss * self.scale
        if not self._copied:
            torch.autograd.backward(loss)
            return
        pairs = list(zip(self.masters, self._weights, strict=True))
        with ExitStack() as stack:
            for master, weight in pairs:
                hook = partial(self._take, master)
                handle = weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                stack.callback(handle.remove)
            torch.autograd.backward(loss)
        for master, weight in pairs:  # sharded weights get their gradient after the hooks
            self._take(master, weight)

    def clip(self) -> Tensor:
        """Clip the gradient to ``max_grad_norm``; return its previous norm, a scalar."""
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self._config.max_grad_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def step(self) -> None:
        """Update the weights and discard the gradient."""
        for group in self.adam.param_groups:
            group["lr"] = self.lr
        self.adam.step()
        if self._copied:
            with torch.no_grad():
                torch._foreach_copy_(local(self._weights), local(self.masters))
        self.steps += 1
        self.discard()

    def discard(self) -> None:
        """Discard the gradient; the weights stay unchanged."""
        for tensor in (*self.masters, *self._weights):
            tensor.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return all state except the model's weights; tensors are live, as in torch."""
        masters = [m.detach() for m in self.masters] if self._copied else []
        state = {"kind": self._config.optimizer, "adam": self.adam.state_dict()}
        return state | {"masters": masters, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict`; raise ConfigError if it is another optimizer's."""
        previous = state.get("kind", "adamw")
        if previous != self._config.optimizer:
            raise ConfigError(
                "learner.optimizer",
                self._config.optimizer,
                f"The checkpoints here were written with {previous!r}: set it to that, or start a "
                "new run in another folder with node.run_dir.",
            )
        # Loading copies to a GPU; on a CPU it would share the given tensors.
        on_cpu = self.masters[0].device.type == "cpu"
        self.adam.load_state_dict(deepcopy(state["adam"]) if on_cpu else state["adam"])
        for group in self.adam.param_groups:
            group.update(betas=self._config.betas, weight_decay=self._config.weight_decay)
        if self._copied:
            with torch.no_grad():
                saved = state["masters"] or self._weights
                for master, tensor in zip(self.masters, saved, strict=True):
                    master.copy_(tensor)
        self.steps = int(state["steps"])

    def _take(self, master: Tensor, weight: Tensor) -> None:
        if weight.grad is None:
            return
        factor = 1.0 / self.scale  # a power of two
        if master.grad is None:
            master.grad = self._moved(weight.grad)
            if factor != 1.0:
                master.grad.mul_(factor)
        elif master.is_cuda:  # the kernel converts each number
            master.grad.add_(weight.grad, alpha=factor)
        else:
            for target, part in _slabs(master.grad, weight.grad):
                target.add_(self._moved(part), alpha=factor)
        weight.grad = None

    def _moved(self, tensor: Tensor, *, copy: bool = False) -> Tensor:
        device = "cpu" if self._config.offload else tensor.device
        return tensor.to(device, torch.float32, copy=copy)


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this process's shards of sharded tensors, and others as they are."""
    return [each.to_local() if isinstance(each, DTensor) else each for each in tensors]


def _slabs(total: Tensor, gradient: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    if isinstance(gradient, DTensor) or not gradient.dim():
        return [(total, gradient)]
    rows = max(1, SLAB_BYTES * len(gradient) // (4 * gradient.numel()))
    return zip(torch.split(total, rows), torch.split(gradient, rows), strict=True)


def _adam(masters: list[Tensor], config: LearnerSection) -> torch.optim.Optimizer:
    if config.optimizer == "adamw8bit":
        return eight_bit_adam(masters, config)
    return torch.optim.AdamW(
        masters,
        lr=config.lr,
        betas=(config.betas[0], config.betas[1]),
        weight_decay=config.weight_decay,
        fused=masters[0].device.type in ("cpu", "cuda"),
    )
