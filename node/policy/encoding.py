"""From text to token ids: nothing that came from outside becomes a special token."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

PROMPT_FORMAT = "swarm-node/1/prompt"


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of text from outside: what spells a special token in it is read as plain text."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return ids


def turn_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of one user turn of the chat template, up to where the policy begins.

    Questions and their templates come from manifests. A text that spells special tokens is put
    into the turn after the template has become ids, so that it cannot end the user's turn and
    write others. That holds for what the tokenizer calls special; a template whose marks are
    ordinary text can be imitated by any text.
    """
    if plain_ids(tokenizer, text) == _own_ids(tokenizer, text):
        return _own_ids(tokenizer, _turn(tokenizer, text))
    stand_in = sha256(text.encode()).hexdigest()
    first, *rest = _turn(tokenizer, stand_in).split(stand_in)
    if not rest:  # the template bends what it is given
        return plain_ids(tokenizer, _turn(tokenizer, text))
    ids = _own_ids(tokenizer, first)
    for part in rest:
        ids += plain_ids(tokenizer, text) + _own_ids(tokenizer, part)
    return ids


def encoding_digest(tokenizer: PreTrainedTokenizerBase, eos_id: int) -> bytes:
    """Digest of whatever decides which ids a text becomes; padding and truncation do not."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules.pop("padding", None)
        rules.pop("truncation", None)
    else:
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    described = [PROMPT_FORMAT, rules, tokenizer.chat_template, eos_id]
    return sha256(json.dumps(described, sort_keys=True).encode()).digest()


def _turn(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    turn = [{"role": "user", "content": text}]
    rendered: Any = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    return str(rendered)


def _own_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of text in which special tokens are meant."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
