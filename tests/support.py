"""Small real models for tests: random decoders with a character tokenizer."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from node.config.learning import PolicySection
from node.config.schema import Section
from node.learner.update_stats import UpdateStats
from node.policy.policy import Policy
from protocol.rollout import Tokens

S = TypeVar("S", bound=Section)

CHARACTERS = "".join(map(chr, range(32, 127)))
CHAT = "{% for m in messages %}<user>{{ m['content'] }}<end>{% endfor %}<assistant>"

SHAPE: dict[str, Any] = {
    "vocab_size": 98,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
    "max_position_embeddings": 256,
    "bos_token_id": None,
}
"""Configuration of a small model, with the keys of Llama and Qwen."""


def changed(section: S, **keys: Any) -> S:
    """Return a configuration section with some keys changed."""
    return type(section)(**{**section.model_dump(), **keys})


def character_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    vocabulary = {c: i for i, c in enumerate([*characters, "<unk>"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def random_policy(
    *, seed: int = 0, hidden: int = 64, layers: int = 2, spread: float = 0.3, dtype=torch.float32
) -> Policy:
    """Return a random Qwen3 decoder; ``spread`` is the weights' standard deviation."""
    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=spread,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).to(dtype)
    return Policy(model, tokenizer, f"random-{seed}")


def loaded(model: object, *more: Any, **keys: Any) -> Policy:
    """Load a policy by name or folder; ``more`` goes to :meth:`Policy.load`."""
    return Policy.load(PolicySection(**{"model": str(model), "device": "cpu", **keys}), *more)


def saved_policy(folder: Path, **settings) -> Path:
    random_policy(**settings).save(folder)
    return folder


def lone_logprobs(
    policy: Policy, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """Return a completion's log-probs from a batch of one; float32 ``[tokens]``."""
    logits = policy.model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
    scored = (logits[len(prompt) - 1 : -1].float() / temperature).log_softmax(-1)
    return scored.gather(-1, torch.tensor([[token] for token in completion])).squeeze(-1)


@torch.no_grad()
def assert_drawn_from(
    tokens: Tokens,
    prompt: Sequence[int],
    *policies: Policy,
    temperature: float = 1.0,
    atol: float = 1e-4,
) -> None:
    """Check that each log-prob is that of the policy with the token's version."""
    versions, actual = torch.tensor(tokens.versions), torch.tensor(tokens.logprobs)
    assert len(tokens.ids) == len(actual) == len(versions)
    assert list(tokens.versions) == sorted(tokens.versions)
    assert {*tokens.versions} <= {policy.version for policy in policies}
    for policy in policies:
        expected = lone_logprobs(policy, prompt, tokens.ids, temperature)
        chosen = versions == policy.version
        assert_close(actual[chosen], expected[chosen], atol=atol, rtol=0)


def generated(policy: Policy, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the greedy completion of ``transformers``."""
    ids = torch.tensor([prompt])
    greedy = {"do_sample": False, "max_new_tokens": count}
    output = policy.model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)
    return tuple(output[0, len(prompt) :].tolist())


def figures(update: UpdateStats) -> dict[str, Any]:
    """Return the figures of an update, with the entropies of all tokens flattened."""
    told = [value for group in update.entropies for done in group for value in done]
    return {**asdict(update), "entropies": tuple(told)}


def policy_of(config: PreTrainedConfig, name: str, seed: int) -> Policy:
    """Return a random float32 policy of a configuration, without stop tokens."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    tokenizer = character_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    policy = Policy(model, tokenizer, name)
    policy.stop_ids = ()
    return policy
