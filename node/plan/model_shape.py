"""What a model's configuration alone tells: parameters, and the sizes that memory follows from."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import psutil

from node.config.config import Config, build
from node.errors import ConfigError
from node.plan.machine import main_memory
from node.policy.device import gpu_memory
from node.policy.model_files import PolicyError
from node.policy.model_source import config_folder, no_model

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


log = logging.getLogger(__name__)

MOST_HEADER = 100_000_000
"""Bytes of a safetensors file's header, as the format allows."""
ASIDE = ("vision", "visual", "audio", "mtp", "rotary_emb")
"""In names of tensors that a causal language model may leave in their file."""
GATED = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose layers are four matrices of attention and three of an MLP, and norms beside."""
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)


def least_weights(folder: Path) -> int:
    """Weights of the model in a folder, or fewer; 0 where nothing there tells.

    Shards that are missing, and a configuration of an unknown family, count as nothing.
    """
    return max(in_files(folder), by_sizes(_config(folder)))


def in_files(folder: Path) -> int:
    """Weights in the folder's safetensors files, by their headers
    (https://huggingface.co/docs/safetensors)."""
    return sum(_in_file(path) for path in folder.glob("model*.safetensors"))


def by_sizes(config: Mapping[str, Any]) -> int:
    """Weights of the matrices of a model of a known family; its norms and biases are left out."""
    known = all(isinstance(config.get(name), int) for name in SIZES)
    if config.get("model_type") not in GATED or not known:
        return 0
    hidden, inner, heads, layers, words = (int(config[name]) for name in SIZES)
    size = config.get("head_dim") or hidden // max(1, heads)
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * size * (heads + kv_heads)
    tables = 1 if config.get("tie_word_embeddings", False) else 2
    return int(tables * words * hidden + layers * (attention + 3 * hidden * inner))


def _in_file(path: Path) -> int:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MOST_HEADER else {}
        return sum(
            prod(tensor["shape"])
            for name, tensor in header.items()
            if name != "__metadata__" and not any(part in name for part in ASIDE)
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.info("%s: its weights are not counted beforehand: %s", path, error)
        return 0


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        log.info("%s: its weights are not counted beforehand: %s", folder, error)
        return {}
    return found if isinstance(found, dict) else {}


FLOAT = 4
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
MOMENTS = {"adamw": 8.0, "adamw8bit": 2.0 + 2 * FLOAT / 256}
"""Of both moments of a weight; in eight bits with a scale for each block of 256."""


def gigabytes(size: float) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.1f} GB"


HELP: tuple[Mapping[str, Any], ...] = (
    {"policy.dtype": "bfloat16"},
    {"learner.optimizer": "adamw8bit"},
    {"policy.dtype": "bfloat16", "learner.optimizer": "adamw8bit"},
    {"learner.offload": True},
    {"policy.dtype": "bfloat16", "learner.offload": True},
    {"policy.lora_rank": 16},
    {"policy.dtype": "bfloat16", "policy.lora_rank": 16},
    {"policy.dtype": "bfloat16", "policy.lora_rank": 16, "schedule.mode": "alternate"},
)
"""Keys that a plan changes too, the least drastic first."""


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes without which no update can be made, and those that there are.

    Only weights, one gradient and the optimizer's numbers count: no activations, no cache, no
    libraries.

    Attributes:
        weights: of the model, in numbers; 0 where they could not be counted.
        memory, device: bytes of main memory and of the GPU.
        there: of main memory with swap, and of the GPU, 0 where there is none.
        free: of main memory, without swap.
    """

    weights: int
    memory: float
    device: float
    there: tuple[int, int]
    free: int

    @property
    def fits(self) -> bool:
        """Whether all that there is would do."""
        return self.memory <= self.there[0] and self.device <= self.there[1]

    @property
    def tight(self) -> bool:
        """Whether it would do only if other programs gave memory back."""
        return self.memory > self.free

    def words(self) -> str:
        """What is needed of what there is, of the place that is short."""
        if self.device > self.there[1]:
            needed, there, place = self.device, self.there[1], "GPU memory"
        else:
            needed, there, place = self.memory, self.there[0], "main memory"
        return (
            f"its {self.weights / 1e9:.2f} billion weights take at least {gigabytes(needed)} of "
            f"{place} with these settings, and this machine has {gigabytes(there)}"
        )


def least(config: Config, weights: int) -> Least:
    """What a model with so many weights takes here."""
    gpu = gpu_memory(config.policy.device)
    place = WIDTHS[config.policy.dtype] * weights
    copies = 2 if config.overlaps else 1
    stepped = 0.0
    if not config.policy.lora_rank:
        half = WIDTHS[config.policy.dtype] < FLOAT or config.learner.offload
        stepped = (FLOAT + MOMENTS[config.learner.optimizer] + FLOAT * half) * weights
    beside = stepped if config.learner.offload and gpu else 0.0
    on_device = place + stepped - beside if gpu else 0.0
    memory = beside if gpu else copies * place + stepped
    whole, free = main_memory()
    there = whole + psutil.swap_memory().total, gpu
    return Least(weights, memory, on_device, there, free)


def check_memory(config: Config) -> Least:
    """Look whether a model can be trained with a configuration on this machine at all.

    Returns:
        What it takes at the least; all 0 where its weights cannot be counted beforehand.

    Raises:
        ConfigError: all that there is would not do. It names keys with which it would.
    """
    model = config.policy.model
    try:
        weights = least_weights(config_folder(model))
    except PolicyError as error:
        log.info("memory is not looked at beforehand: %s", error)
        weights = 0
    found = least(config, weights)
    if not found.fits:
        raise ConfigError("policy.model", model, f"{_sentence(found.words())} {help_for(config)}")
    return found


def help_for(config: Config) -> str:
    """The first keys of :data:`HELP` with which the same model fits, as a sentence."""
    weights = least_weights(config_folder(config.policy.model))
    present = config.model_dump()
    for keys in HELP:
        if least(build(present, keys), weights).fits:
            return f"Set {', '.join(f'{key} = {_shown(value)}' for key, value in keys.items())}."
    return "Take a smaller model: swarm-node plan tells how large one may be."


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
