"""AdamW whose moments take a byte each, stepped on some weights at a time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from node.config.learning import LearnerSection
from node.errors import ConfigError

BLOCK = 256
"""Weights that share a scale, as the library has it."""
SLAB = 1 << 17
"""Weights stepped at a time on a CPU: the library's step there is a chain of operations, each of
which writes float32 numbers for all the weights that it is given."""


def eight_bit_adam(masters: Sequence[Tensor], config: LearnerSection) -> torch.optim.Optimizer:
    """bitsandbytes' ``AdamW8bit`` (arXiv:2110.02861).

    Raises:
        ConfigError: it is not installed.
    """
    try:
        library: Any = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise ConfigError(
            "learner.optimizer",
            config.optimizer,
            f"bitsandbytes cannot be loaded ({error}): install swarm-node[adamw8bit], or set "
            "learner.optimizer = 'adamw'.",
        ) from error

    class Slabwise(library.AdamW8bit):  # type: ignore[misc]
        """Moments of each weight, their scales, and its numbers are what they are without slabs."""

        def update_step(self, group: Any, p: Tensor, gindex: int, pindex: int) -> None:
            state = self.state[p]
            if p.device.type != "cpu" or p.numel() <= SLAB or state["state1"].dtype != torch.uint8:
                super().update_step(group, p, gindex, pindex)
                return
            assert p.grad is not None
            for part in range(0, p.numel(), SLAB):
                slab, slab_state = _slab(p, state, part)
                self.state[slab] = slab_state
                super().update_step(group, slab, gindex, pindex)
                del self.state[slab]
            state["step"] += 1

    adam: torch.optim.Optimizer = Slabwise(
        list(masters), lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay
    )
    return adam


def _slab(p: Tensor, state: dict[str, Any], begin: int) -> tuple[Parameter, dict[str, Any]]:
    """Some of a tensor's weights with gradient and state, all of them views."""
    assert p.grad is not None
    weights, scales = slice(begin, begin + SLAB), slice(begin // BLOCK, (begin + SLAB) // BLOCK)
    slab = Parameter(p.detach().view(-1)[weights], requires_grad=False)
    slab.grad = p.grad.reshape(-1)[weights]
    views = {name: state[name].view(-1)[weights] for name in ("state1", "state2")}
    views |= {name: state[name][scales] for name in ("absmax1", "absmax2")}
    return slab, state | views
