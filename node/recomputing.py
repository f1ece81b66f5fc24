"""Activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from node.errors import ConfigError


class Recomputing:
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
        model.gradient_checkpointing_enable({"use_reentrant": False})
        # Only the reentrant kind needs inputs with a gradient, and sampling has none to give.
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """In the block layers drop what they compute; outside they keep caches for sampling.

        The library asks a layer's own training mode. Its parts stay in evaluation mode.
        """
        for layer in self._layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer.training = False
