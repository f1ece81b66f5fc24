"""Activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from node.errors import ConfigError


class GradientCheckpointing:
    """Gradient checkpointing (arXiv:1604.06174) of every decoder layer.

    Args:
        model: in evaluation mode.

    Raises:
        ConfigError: its layers cannot be computed again.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not (self._layers and model.supports_gradient_checkpointing):
            raise ConfigError(
                "learner.gradient_checkpointing",
                True,
                f"transformers' {type(model).__name__} does not support it: set it to false.",
            )

    @contextmanager
    def forward(self) -> Iterator[None]:
        """In the block layers drop what they compute; outside they keep caches for sampling.

        The library's own switch asks for a layer's training mode, in which some drop activations
        at random, and others each time.
        """
        for layer in self._layers:
            again = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
            layer.forward = again
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward  # the class's own is behind it
