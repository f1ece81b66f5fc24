"""What a model's configuration alone tells: parameters, and the sizes that memory follows from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.policy.model_source import no_model

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")
FUSED = ("llama", "qwen2", "qwen3")
"""Families whose decoding step keeps query, key and value as one matrix of its own
(:mod:`node.engines.transformers.fused_decoder`)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A causal language model in numbers.

    Attributes:
        family: ``model_type`` of its configuration.
        parameters: all of them; a head that is tied to the embeddings counts once.
        active: those that one token meets; of experts only the chosen ones.
        adapted: weights of the linear layers that get an adapter, which is all but the head.
        adapter_width: inputs and outputs of these layers, added up: one rank's weights.
        shares: completions of a group may read their prompt together.
        fused: weights that the engine's decoding step holds a second time.
        layers, hidden, intermediate, heads, kv_heads, head_size, vocabulary: of the decoder.
        context: most tokens of prompt and completion together.
    """

    family: str
    parameters: int
    active: int
    adapted: int
    adapter_width: int
    shares: bool
    fused: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int

    def scaled(self, factor: float) -> ModelShape:
        """A model of ``factor`` times the parameters, of the same depth, heads and vocabulary."""
        width = factor**0.5
        return replace(
            self,
            parameters=round(self.parameters * factor),
            active=round(self.active * factor),
            adapted=round(self.adapted * factor),
            adapter_width=round(self.adapter_width * width),
            fused=round(self.fused * factor),
            hidden=round(self.hidden * width),
            intermediate=round(self.intermediate * width),
            head_size=round(self.head_size * width),
        )


def shape_of(folder: Path, model: str) -> ModelShape:
    """Count a model's parameters by building it without memory, on torch's ``meta`` device.

    Args:
        folder: with the model's ``config.json``; nothing else of it is read.
        model: what it is called in errors.

    Raises:
        PolicyError: the configuration is of no causal language model that can be built.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            built = loader.from_config(config)
    except Exception as error:  # whatever the library makes of a wrong number in that file
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise no_model(model, f"config.json: {lines[0].rstrip('.')}") from error
    return _counted(built, model)


def _counted(built: Any, model: str) -> ModelShape:
    from torch import nn

    from node.learner.micro_batching import fits
    from node.policy.policy import context_length

    text: Any = built.config.get_text_config()
    heads = int(text.num_attention_heads)
    hidden = int(text.hidden_size)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    size = int(getattr(text, "head_dim", None) or hidden // heads)
    parameters = sum(p.numel() for p in built.parameters())
    head = built.get_output_embeddings()
    linear = [m for m in built.modules() if isinstance(m, nn.Linear) and m is not head]
    layers = int(text.num_hidden_layers)
    fused = layers * hidden * (heads + 2 * kv_heads) * size
    return ModelShape(
        family=str(text.model_type),
        parameters=parameters,
        active=parameters - _idle(built, text),
        adapted=sum(m.weight.numel() for m in linear),
        adapter_width=sum(m.in_features + m.out_features for m in linear),
        shares=fits(built),
        fused=fused if text.model_type in FUSED else 0,
        layers=layers,
        hidden=hidden,
        intermediate=_intermediate(text, hidden),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        vocabulary=int(text.vocab_size),
        context=context_length(built.config, model),
    )


def _intermediate(text: Any, hidden: int) -> int:
    """Width between the matrices of a layer's MLP, of all experts that a token meets."""
    experts, chosen = _first(text, EXPERTS), _first(text, CHOSEN)
    if experts and chosen:
        width = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
        return int(width) * chosen
    return int(getattr(text, "intermediate_size", None) or 4 * hidden)


def _idle(built: Any, text: Any) -> int:
    """Weights of the experts that a token does not meet."""
    experts, chosen = _first(text, EXPERTS), _first(text, CHOSEN)
    if not (experts and chosen):
        return 0
    routed: int = sum(p.numel() for name, p in built.named_parameters() if ".experts." in name)
    return round(routed * (1 - chosen / experts))


def _first(text: Any, names: tuple[str, ...]) -> int:
    return next((int(value) for name in names if (value := getattr(text, name, None))), 0)
