"""Policies of random weights, and groups for them to learn from; nothing is fetched."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from on_gpu.section import Settings, SkippedError

if TYPE_CHECKING:
    from node.learner.batches import TrainingGroup
    from node.policy.policy import Policy

CHARACTERS = "".join(chr(code) for code in (10, *range(32, 127)))
SEED = 0
FULL_BYTES, LORA_BYTES = 20, 3
"""Of memory a weight that training takes at least: weight, gradients, float32 copy and moments;
and of one that an adapter leaves as it is, the engine's merged copy included."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a model as Qwen2 lays it out, input and output embeddings being one."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """All weights but norms and biases."""
        size = self.hidden // self.heads
        attention = 2 * self.hidden * size * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner
        return self.vocabulary * self.hidden + self.layers * layer

    def flops(self, length: int, passes: int) -> float:
        """Floating-point operations of a token in rows of ``length`` tokens.

        Every weight is multiplied with once a pass, the output's embeddings among them, and each
        token looks at half of the row at the mean.

        Args:
            passes: 1 forward, 2 with the gradient of activations, 3 with that of the weights.
        """
        looking = 2 * self.layers * self.hidden * length
        return passes * (2.0 * self.parameters + looking)


SHAPES = {
    "0.001": Shape(128, 2, 4, 2, 384, 4_000),
    "0.1": Shape(768, 12, 12, 2, 2_304, 32_000),
    "0.5": Shape(896, 24, 14, 2, 4_864, 151_936),
    "1.5": Shape(1_536, 28, 12, 2, 8_960, 151_936),
}
"""By billions of parameters; the latter two are those of Qwen2.5."""

CONTEXT = 16_384


def check_room(settings: Settings, shape: Shape, each: int) -> None:
    """Skip what cannot fit into the GPU's memory.

    Raises:
        SkippedError: ``each`` bytes a weight are more than it has.
    """
    if not settings.on_gpu:
        return
    import torch

    _, there = torch.cuda.mem_get_info(settings.device)
    if each * shape.parameters > 0.95 * there:
        need = f"{each * shape.parameters / 1e9:.1f} GB or more"
        raise SkippedError(f"takes {need}, and the GPU has {there / 1e9:.1f} GB")


def config_of(size: str) -> Any:
    """The configuration of a model, as ``transformers`` has it."""
    from transformers import Qwen2Config

    shape = SHAPES[size]
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=len(CHARACTERS),
        pad_token_id=len(CHARACTERS) + 1,
        bos_token_id=None,
        architectures=["Qwen2ForCausalLM"],
    )


def random_model(settings: Settings, size: str, dtype: str = "") -> Any:
    """A random decoder on the run's device."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    with torch.device(settings.device):
        loader: Any = AutoModelForCausalLM
        kind = getattr(torch, dtype or settings.dtype)
        return loader.from_config(config_of(size), dtype=kind, trust_remote_code=False)


def random_policy(settings: Settings, size: str, *, dtype: str = "", lora: bool = False) -> Policy:
    """A policy that never stops by itself, so that every completion has the length asked for."""
    from policies import word_tokenizer

    from node.policy.policy import Policy

    model = random_model(settings, size, dtype)
    adapter = None
    if lora:
        from node.policy.lora import Adapter

        adapter = Adapter(model, rank=16, alpha=32, targets=())
    tokenizer = word_tokenizer([*CHARACTERS, "<eos>", "<pad>", "<unk>"])
    policy = Policy(model, tokenizer, f"random-{size}", adapter)
    policy.stop_ids = (-1,)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = policy.pad_id
    return policy


def prompts(count: int, length: int) -> list[list[int]]:
    """Random prompts of characters."""
    chance = random.Random(SEED)
    return [[chance.randrange(len(CHARACTERS)) for _ in range(length)] for _ in range(count)]


def random_groups(
    policy: Policy, count: int, completions: int, prompt: int, length: int
) -> list[TrainingGroup]:
    """Own groups of random text whose rewards differ."""
    from node.learner.batches import TrainingCompletion, TrainingGroup

    chance = random.Random(SEED)
    groups = []
    for ids in prompts(count, prompt):
        written = tuple(
            TrainingCompletion(
                tuple(chance.randrange(len(CHARACTERS)) for _ in range(length)),
                (True,) * length,
                (-5.0,) * length,
                (policy.version,) * length,
            )
            for _ in range(completions)
        )
        rewards = tuple(float(n % 2) for n in range(completions))
        groups.append(TrainingGroup(tuple(ids), written, rewards, local=True))
    return groups


def let_go() -> None:
    """Give back what is no longer referred to, the GPU's memory included."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
