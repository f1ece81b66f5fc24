"""Policies that sample completions of exactly the length asked for, and a plain tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from node.config.learning import PolicySection
from node.policy.policy import Policy


def endless_policy(model: str | Path, *, tokens: int = 0, dtype: str = "float32") -> Policy:
    """Load a policy onto the CPU; its context has room for ``tokens``."""
    policy = Policy.load(PolicySection(model=str(model), dtype=dtype, device="cpu"))
    policy.stop_ids = ()
    generation = policy.model.generation_config
    generation.eos_token_id, generation.pad_token_id = None, policy.pad_id
    policy.context_length = max(policy.context_length, tokens)
    policy.model.config.max_position_embeddings = policy.context_length
    return policy


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer that splits text into characters; ids are places in ``words``."""
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
