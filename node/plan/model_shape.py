"""A model's sizes from its configuration; whether it can train on this machine."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import psutil

from node.config.config import Config, build
from node.errors import ConfigError, NodeError
from node.monitor.record import size
from node.plan.machine import main_memory
from node.policy.device import gpu_memory
from node.policy.model_files import PolicyError, in_a_line
from node.policy.model_source import config_folder, no_model
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder

log = logging.getLogger(__name__)

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")
FUSED = ("llama", "qwen2", "qwen3")
"""Families with a fused QKV matrix in :mod:`node.engines.transformers.fused_decoder`."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    family: str
    parameters: int  # all of them; a head tied to the embeddings counts once
    active: int  # used per token; of experts only the chosen ones
    adapted: int  # weights of the linear layers with an adapter, all but the head
    adapter_width: int  # inputs plus outputs of these layers: the weights per rank
    shares: bool  # whether a group's completions may share their prompt's forward pass
    fused: int  # weights that the engine's decoding step duplicates
    layers: int
    hidden: int
    norm_width: int  # elements that a layer's norms read per token
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int  # maximum prompt plus completion tokens

    def scaled(self, factor: float) -> ModelShape:
        """Return ``factor`` times the parameters at equal depth, heads and vocabulary."""
        width = factor**0.5
        return replace(
            self,
            parameters=round(self.parameters * factor),
            active=round(self.active * factor),
            adapted=round(self.adapted * factor),
            adapter_width=round(self.adapter_width * width),
            fused=round(self.fused * factor),
            hidden=round(self.hidden * width),
            norm_width=round(self.norm_width * width),
            intermediate=round(self.intermediate * width),
            head_size=round(self.head_size * width),
        )


def shape_of(folder: Path, model: str) -> ModelShape:
    """Count parameters from ``config.json`` alone, or raise ``PolicyError``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            module = loader.from_config(config, trust_remote_code=False)
        return _counted(module, model)
    except PolicyError:
        raise
    except Exception as error:  # wrong numbers in that file, or a family without attention
        raise no_model(model, f"config.json: {in_a_line(error)}") from error


def _counted(module: Any, model: str) -> ModelShape:
    from torch import nn

    from node.learner.micro_batching import reads_shared_rows
    from node.policy.policy import context_length

    text: Any = module.config.get_text_config()
    heads = int(text.num_attention_heads)
    hidden = int(text.hidden_size)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    head_size = int(getattr(text, "head_dim", None) or hidden // heads)
    parameters = sum(p.numel() for p in module.parameters())
    head = module.get_output_embeddings()
    linear = [m for m in module.modules() if isinstance(m, nn.Linear) and m is not head]
    layers = int(text.num_hidden_layers)
    fused = layers * hidden * (heads + 2 * kv_heads) * head_size
    idle, width = 0, getattr(text, "intermediate_size", 0)
    experts, active = _first(text, EXPERTS), _first(text, CHOSEN)
    if experts and active:  # a token passes through some experts only
        width = int(getattr(text, "moe_intermediate_size", None) or width) * active
        routed: int = sum(p.numel() for name, p in module.named_parameters() if ".experts." in name)
        idle = round(routed * (1 - active / experts))
    return ModelShape(
        family=str(text.model_type),
        parameters=parameters,
        active=parameters - idle,
        adapted=sum(m.weight.numel() for m in linear),
        adapter_width=sum(m.in_features + m.out_features for m in linear),
        shares=reads_shared_rows(module),
        fused=fused if text.model_type in FUSED else 0,
        layers=layers,
        hidden=hidden,
        norm_width=_norms(module, hidden, head_size, {"q": heads, "k": kv_heads}) // layers,
        intermediate=int(width or 4 * hidden),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=int(text.vocab_size),
        context=context_length(module.config, model),
    )


def _norms(root: Any, hidden: int, size: int, heads: Mapping[str, int]) -> int:
    """Return the elements that the norms of all layers read per token.

    One of queries or keys that is as wide as a head, ``size``, reads each of ``heads``.
    """
    total = 0
    for name, module in root.named_modules():
        class_name, parts = type(module).__name__, name.split(".")
        if "Norm" in class_name and not [*module.children()] and any(map(str.isdigit, parts)):
            weight = getattr(module, "weight", None)
            width = hidden if weight is None else weight.numel()
            excluded = any(part in name for part in ASIDE)
            total += 0 if excluded else width * (heads.get(parts[-1][0], 1) if width == size else 1)
    return total


def _first(text: Any, names: tuple[str, ...]) -> int:
    return next((int(value) for name in names if (value := getattr(text, name, None))), 0)


MOST_HEADER = 100_000_000  # bytes of a safetensors header, limit of the format
ASIDE = ("vision", "visual", "audio", "mtp", "rotary_emb")
"""Parts of names of tensors that a causal language model may not load."""
GATED = ("llama", "mistral", "qwen2", "qwen3")
"""Families with four attention and three MLP matrices per layer, and norms."""
SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"),
    "vocab_size",
)


def least_weights(folder: Path) -> int:
    """Return a lower bound of a folder's weights; unknown or missing parts count 0."""
    return max(in_files(folder), by_sizes(_config(folder)))


def in_files(folder: Path) -> int:
    return sum(_in_file(path) for path in folder.glob("model*.safetensors"))


def by_sizes(config: Mapping[str, Any]) -> int:
    """Return the matrix weights of a known family, without norms and biases."""
    has_sizes = all(_is_size(config.get(name)) for name in SIZES)
    if config.get("model_type") not in GATED or not has_sizes:
        return 0
    hidden, inner, heads, layers, vocab = (int(config[name]) for name in SIZES)
    defaults = {"head_dim": hidden // heads, "num_key_value_heads": heads}
    given = {key: config[key] for key in defaults if _is_size(config.get(key))}
    head_size, kv_heads = (defaults | given).values()
    attention = 2 * hidden * head_size * (heads + kv_heads)
    tables = 1 if config.get("tie_word_embeddings", False) else 2
    return int(tables * vocab * hidden + layers * (attention + 3 * hidden * inner))


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 32


def _in_file(path: Path) -> int:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MOST_HEADER else {}
        shapes = [
            tensor["shape"]
            for name, tensor in header.items()
            if name != "__metadata__" and not any(part in name for part in ASIDE)
        ]
        return sum(prod(shape) for shape in shapes if len(shape) < 8 and all(map(_is_size, shape)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.info("%s: its memory is not estimated: %s", path, error)
        return 0


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        log.info("%s: its memory is not estimated: %s", folder, error)
        return {}
    return config if isinstance(config, dict) else {}


FLOAT = 4
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
MOMENTS = {"adamw": 8.0, "adamw8bit": 2.0 + 2 * FLOAT / 256}
"""Bytes of both moments per weight; in 8 bits with a scale per block of 256."""


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


HELP: tuple[Mapping[str, Any], ...] = (
    {"policy.dtype": "bfloat16"},
    {"learner.optimizer": "adamw8bit"},
    {"policy.dtype": "bfloat16", "learner.optimizer": "adamw8bit"},
    {"learner.offload": True},
    {"policy.dtype": "bfloat16", "learner.offload": True},
    {"policy.lora_rank": 16},
    {"policy.dtype": "bfloat16", "policy.lora_rank": 16},
    {"policy.dtype": "bfloat16", "policy.lora_rank": 16, "schedule.mode": "sync"},
)  # Config keys that a plan changes, too, the least drastic first.


@dataclass(frozen=True, slots=True)
class LeastMemory:
    """Minimum bytes (weights, one gradient, optimizer; one checkpoint), and the available ones."""

    weights: int  # number of the model's; 0 if unknown
    memory: float
    device: float
    checkpoint: float
    there: tuple[int, int]  # available: main memory with swap, and the GPU's, 0 without one
    free: int  # of main memory, without swap

    @property
    def fits(self) -> bool:
        return self.memory <= self.there[0] and self.device <= self.there[1]

    @property
    def tight(self) -> bool:
        """Whether it fits only if other programs free memory."""
        return self.memory > self.free

    def words(self) -> str:
        """Describe the needed and existing memory of the place that is short."""
        if self.device > self.there[1]:
            needed, available, place = self.device, self.there[1], "GPU memory"
        else:
            needed, available, place = self.memory, self.there[0], "main memory"
        return (
            f"its {self.weights / 1e9:.2f} billion weights need at least "
            f"{gigabytes(needed)} of {place} with these settings, and this machine has "
            f"{gigabytes(available)}"
        )


def least_memory(config: Config, weights: int) -> LeastMemory:
    """Return the minimum memory of a model with so many weights here."""
    gpu = gpu_memory(config.policy.device)
    model_size = WIDTHS[config.policy.dtype] * weights
    copies = 2 if config.asynchronous else 1
    trained = 0 if config.policy.lora_rank else weights
    half = WIDTHS[config.policy.dtype] < FLOAT or config.learner.offload
    optimizer = (MOMENTS[config.learner.optimizer] + FLOAT * half) * trained
    step_bytes = FLOAT * trained + optimizer
    offloaded = step_bytes if config.learner.offload and gpu else 0.0
    on_device = model_size + step_bytes - offloaded if gpu else 0.0
    memory = offloaded if gpu else copies * model_size + step_bytes
    total, free = main_memory()
    available = total + psutil.swap_memory().total, gpu
    checkpoint = model_size + optimizer if trained else 0.0  # of LoRA it has only the adapters
    return LeastMemory(weights, memory, on_device, checkpoint, available, free)


def check_memory(config: Config) -> LeastMemory:
    """Check that this machine can train the model at all; weights 0 if unknown.

    Raises ``ConfigError`` if the memory does not suffice, with keys that would help.
    """
    model = config.policy.model
    try:
        weights = least_weights(config_folder(model))
    except PolicyError as error:
        log.info("memory is not checked: %s", error)
        weights = 0
    memory = least_memory(config, weights)
    if not memory.fits:
        shortage = memory.words()
        remedy = f"{shortage[0].upper()}{shortage[1:]}. {help_for(config)}"
        raise ConfigError("policy.model", model, remedy)
    return memory


def check_space(folder: RunFolder, checkpoint: float) -> None:
    """Check that the disk has space for the first checkpoint, in bytes; raise NodeError."""
    free = shutil.disk_usage(folder.root).free
    if checkpoint > free and not Checkpoints(folder.checkpoints).steps():
        what = f"no space for a checkpoint of {size(checkpoint)}, only {size(free)} at"
        raise NodeError(what, folder.root, "Free space, or set node.run_dir to another disk.")


def help_for(config: Config) -> str:
    """Return the first keys of :data:`HELP` with which the model fits, as a sentence."""
    weights = least_weights(config_folder(config.policy.model))
    current = config.model_dump()
    for keys in HELP:
        if least_memory(build(current, keys), weights).fits:
            values = {key: "true" if value is True else repr(value) for key, value in keys.items()}
            return f"Set {', '.join(f'{key} = {value}' for key, value in values.items())}."
    return "Use a smaller model: swarm-node plan shows the maximum size."
