"""Which completions of a group read their prompt together."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from transformers import PreTrainedModel

from node.learner.batches import Row, held_tokens

STEADY_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary position embeddings that do not depend on the sequence's length."""


def fits(model: PreTrainedModel) -> bool:
    """Whether ``model.forward`` gives a completion in a shared row what it gives it alone.

    It does where every layer is plain causal attention that takes a four-dimensional mask as it is
    and positions as they are told. Sliding and chunked windows, state-space and linear attention
    layers, flash attention and rotations that depend on the length do not.
    """
    config = model.config.get_text_config()
    rotation = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    layers = getattr(config, "layer_types", None) or ("full_attention",)
    return (
        model._supports_attention_backend
        and not model._is_stateful
        and config._attn_implementation in ("sdpa", "eager")
        and getattr(config, "sliding_window", None) is None
        and all(layer == "full_attention" for layer in layers)
        and rotation.get("rope_type") in STEADY_ROTATIONS
        and "position_ids" in inspect.signature(model.forward).parameters
    )


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row costs, estimated in multiplications of a forward pass.

    A shared row saves copies of the prompt, and pays for the whole square of its tokens where rows
    of one completion pay for half of a small square each.

    Attributes:
        matrices: of one token with the weights.
        pair: of one token's attention to another, in all layers.
        mask_weight: of one number of the mask in memory, against all that is kept of a token for
            the backward pass; taken too high, as if only every layer's input was kept.
    """

    matrices: int
    pair: int
    mask_weight: float

    @classmethod
    def of(cls, model: PreTrainedModel) -> RowCost:
        """Of a model that :func:`fits`."""
        config = model.config.get_text_config()
        heads, hidden = config.num_attention_heads, config.hidden_size
        size = getattr(config, "head_dim", None) or hidden // heads
        layers = config.num_hidden_layers
        return cls(
            model.num_parameters(exclude_embeddings=True),
            2 * layers * heads * size,
            1.0 / (layers * hidden),
        )

    def cost(self, row: Row) -> float:
        """Multiplications that the row takes."""
        length = row.length
        pairs = length * length if row.shared else length * length / 2
        return length * self.matrices + pairs * self.pair

    def rows(self, row: Row, token_budget: float) -> list[Row]:
        """The row, or parts of it where they cost less or where it is beyond the budget."""
        if not row.shared:
            return [row]
        middle = len(row.completions) // 2
        halves = row.part(0, middle), row.part(middle, len(row.completions))
        within = held_tokens(1, row, self.mask_weight) <= token_budget
        if within and self.cost(row) <= sum(map(self.cost, halves)):
            return [row]
        return [part for half in halves for part in self.rows(half, token_budget)]
