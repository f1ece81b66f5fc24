"""Text to token ids: text from outside never becomes a special token."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from jinja2 import TemplateError
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from node.errors import ConfigError
from node.policy.model_files import PolicyError

PROMPT_FORMAT = "swarm-node/1/prompt"


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode text from outside, with special tokens in it as plain text."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return ids


def turn_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, options: Mapping[str, Any]
) -> list[int]:
    """Encode one user turn of the chat template, up to where the policy begins.

    Text that spells special tokens is inserted after the template has become ids, so that it cannot
    end the user's turn and write others. This covers what the tokenizer calls special: any text can
    imitate a template whose marks are ordinary text.
    """
    if plain_ids(tokenizer, text) == _own_ids(tokenizer, text):
        return _own_ids(tokenizer, _turn(tokenizer, text, options))
    stand_in = sha256(text.encode()).hexdigest()
    first, *rest = _turn(tokenizer, stand_in, options).split(stand_in)
    if not rest:  # the template changes its input
        return plain_ids(tokenizer, _turn(tokenizer, text, options))
    ids = _own_ids(tokenizer, first)
    for part in rest:
        ids += plain_ids(tokenizer, text) + _own_ids(tokenizer, part)
    return ids


def next_turn_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, options: Mapping[str, Any]
) -> list[int]:
    """Encode a further user turn, from the policy's last EOS to its next start.

    The template's rendering of earlier turns is dropped: their ids exist already. Raises
    PolicyError if the template does not take a second turn.
    """
    before, after = _around_next(tokenizer, sha256(text.encode()).hexdigest(), options)
    own = plain_ids(tokenizer, text) == _own_ids(tokenizer, text)
    if own:
        return _own_ids(tokenizer, before + text + after)
    return _own_ids(tokenizer, before) + plain_ids(tokenizer, text) + _own_ids(tokenizer, after)


def check_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the chat template reads these options."""
    template = str(tokenizer.chat_template or "")
    taken = inspect.signature(tokenizer.apply_chat_template).parameters
    for name, value in options.items():
        if name in taken or not re.search(rf"\b{re.escape(name)}\b", template):
            has = "has no such switch" if template else "is missing"
            raise ConfigError(
                f"policy.chat_template_kwargs.{name}",
                value,
                f"The chat template {has}: take it out.",
            )


def encoding_digest(
    tokenizer: PreTrainedTokenizerBase, eos_id: int, options: Mapping[str, Any]
) -> bytes:
    """Return the digest of all that decides a text's ids; not padding and truncation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules.pop("padding", None)
        rules.pop("truncation", None)
    else:
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    described = [PROMPT_FORMAT, rules, tokenizer.chat_template, eos_id]
    if options:
        described.append(dict(options))
    return sha256(json.dumps(described, sort_keys=True).encode()).digest()


def _around_next(
    tokenizer: PreTrainedTokenizerBase, stand_in: str, options: Mapping[str, Any]
) -> tuple[str, str]:
    said = stand_in[::-1]
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": stand_in},
    ]
    try:
        rendered = _rendered(tokenizer, turns, options)
        _, following = rendered.split(said)
        before, after = following.split(stand_in)
    except (TemplateError, ValueError) as error:
        raise PolicyError(
            "policy.model",
            f"the chat template of {tokenizer.name_or_path!r} takes no second turn",
            "Choose a model for conversations, or a catalogue without environments.",
        ) from error
    return before.removeprefix(str(tokenizer.eos_token)), after


def _rendered(
    tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]], options: Mapping[str, Any]
) -> str:
    rendered: Any = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=False, **options
    )
    return str(rendered)


def _turn(tokenizer: PreTrainedTokenizerBase, text: str, options: Mapping[str, Any]) -> str:
    return _rendered(tokenizer, [{"role": "user", "content": text}], options)


def _own_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode text with its special tokens as such."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
