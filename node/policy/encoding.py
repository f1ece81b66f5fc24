"""Text to token ids: text from outside never becomes a control token."""

from __future__ import annotations

import inspect
import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

from tokenizers import Tokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from node.errors import ConfigError
from node.policy.model_files import PolicyError

PROMPT_FORMAT = "swarm-node/1/prompt"
USER, ASSISTANT = "user", "assistant"


def hidden_ids(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> frozenset[int]:
    """Return the ids below ``vocabulary`` that decode to no text.

    These are all added tokens marked special, also those without a name such as ``eos_token``, and
    ids without a token. Other added tokens, such as ``<think>``, decode to what they spell.
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    unused = set(range(vocabulary)).difference(tokenizer.get_vocab().values())
    return frozenset(special | unused | set(tokenizer.all_special_ids))


class PromptEncoder:
    """Encoder of outside text, alone or in a turn of the chat template.

    Control tokens are the special tokens, declared ends and all added tokens that the template
    writes. A turn whose text spells some is encoded with a copy of the tokenizer that has other
    names for them. So the text cannot end its turn, and all other ids are those of harmless text,
    white space and prefix spaces included. Any text can imitate a template whose marks are ordinary
    text. For ``hidden`` see :func:`hidden_ids`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        hidden: Collection[int],
        declared: Collection[int],
        options: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._options = dict(options)
        self.hidden = frozenset(hidden)
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._foreign = self.hidden | self._added.intersection(declared)  # never in outside text
        if tokenizer.chat_template is not None and (
            self._rendered([(USER, "one")]) == self._rendered([(USER, "two")])
        ):
            raise PolicyError(
                "policy.model",
                f"the chat template of {tokenizer.name_or_path!r} omits the user's message",
                "Choose another model, or correct its chat template.",
            )
        # The special token that ends an assistant turn of the template; None if there is none.
        self.turn_end = self._turn_end(declared) if tokenizer.chat_template else None
        self._ends = self.hidden.intersection([*declared, self.turn_end])

    def plain(self, text: str) -> list[int]:
        """Encode text from outside, with special tokens in it as plain text."""
        ids = self._with_control(text)
        if self._foreign.isdisjoint(ids):
            return ids
        if (copy := self._renamed_foreign) is not None:
            return copy.encode(text)
        split_ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return split_ids

    def spells(self, ids: Sequence[int], text: str) -> bool:
        """Return whether all added tokens in ``ids`` are those of :meth:`plain`."""
        return self._added.isdisjoint(ids) or list(ids) == self.plain(text)

    def turn(self, text: str) -> list[int]:
        """Encode one user turn of the chat template, up to where the policy begins."""
        return self._in_template(text, lambda shown: self._rendered([(USER, shown)]))

    def next_turn(self, text: str) -> list[int]:
        """Encode a further user turn, from the end of the policy's turn to its next start.

        The template's rendering of earlier turns is dropped: their ids exist already. Raises
        PolicyError if the template does not take a second turn.
        """
        end_count = self._end_of_turn_ids
        return self._in_template(text, self._second_turn)[end_count:]

    def digest(self, eos_id: int) -> bytes:
        """Return the digest of all that decides a text's ids; not padding and truncation."""
        tokenizer = self._tokenizer
        rules = _rules(tokenizer)
        if rules is None:
            rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
        template = tokenizer.chat_template
        special = {
            name: token
            for name, token in tokenizer.special_tokens_map.items()
            if (re.search(rf"\b{name}\b", str(template)) if template else name == "bos_token")
        }
        content = [PROMPT_FORMAT, rules, template, eos_id, special, self._options]
        return sha256(json.dumps(content, sort_keys=True).encode()).digest()

    def _turn_end(self, declared: Collection[int]) -> int | None:
        """Return the special token behind the last assistant message of a conversation.

        A template that always opens the next turn may show that turn's first token there, so this
        token has to be a ``declared`` end or to follow an earlier message, too. Some templates end
        no message, and the model writes the next turn's first token, a ``declared`` end.
        """
        last, earlier = self._end_before([]), self._end_before([(USER, "?")])
        if last is not None and (last in declared or earlier in (last, None)):
            return last
        return earlier if earlier in declared else None

    def _end_before(self, later: Sequence[tuple[str, str]]) -> int | None:
        """Return the special token behind an assistant's text, before ``later`` turns."""
        marker = secrets.token_hex()
        turns = [(USER, "?"), (ASSISTANT, marker), *later]
        try:
            tails = self._rendered(turns, prompt=bool(later)).split(marker)[1:]
        except PolicyError:
            return None
        ids = self._with_control(tails[-1]) if tails else []
        end = self._count_through(ids, self.hidden)
        return ids[end - 1] if end else None

    def _count_through(self, ids: Sequence[int], ends: Collection[int]) -> int:
        """Return the number of ids through the first of ``ends``; 0 if text is before it."""
        index = next((i for i, token_id in enumerate(ids) if token_id in ends), None)
        if index is None or str(self._tokenizer.decode(list(ids[:index]))).strip():
            return 0
        return index + 1

    @cached_property
    def _end_of_turn_ids(self) -> int:
        """The number of ids between an assistant's text and the next turn that are its end."""
        stand_in = secrets.token_hex()
        head, *tail = self._second_turn(stand_in).split(stand_in)
        if not tail:
            raise self._no_second_turn()
        return self._count_through(self._with_control(head), self._ends)

    def _second_turn(self, text: str) -> str:
        """Render a second user turn, from the end of the assistant's text on."""
        marker = secrets.token_hex()
        try:
            rendered = self._rendered([(USER, "?"), (ASSISTANT, marker), (USER, text)])
            _, following = rendered.split(marker)
        except (PolicyError, ValueError) as error:
            raise self._no_second_turn() from error
        return following

    def _no_second_turn(self) -> PolicyError:
        return PolicyError(
            "policy.model",
            f"the chat template of {self._tokenizer.name_or_path!r} does not support a second turn",
            "Choose a model for conversations, or a task set without environments.",
        )

    @cached_property
    def _control(self) -> frozenset[int]:
        """Ids that a text in a turn of the template must not get."""
        try:
            second = self._second_turn("?")
        except PolicyError:
            second = ""  # This template has single turns only.
        first = self._rendered([(USER, "?")])
        ids = self._with_control(first) + self._with_control(second)
        added = self._tokenizer.added_tokens_decoder
        return self._foreign | {i for i in ids if i in added and added[i].content.strip(" \n▁")}

    @cached_property
    def _renamed_foreign(self) -> _RenamedTokens | None:
        return _RenamedTokens.of(self._tokenizer, self._foreign)

    @cached_property
    def _renamed_control(self) -> _RenamedTokens | None:
        if self._control == self._foreign:
            return self._renamed_foreign
        return _RenamedTokens.of(self._tokenizer, self._control)

    def _in_template(self, text: str, render: Callable[[str], str]) -> list[int]:
        """Encode what ``render`` makes of a text, with control tokens in the text as plain text."""
        if self._control.isdisjoint(self._with_control(text)):
            return self._with_control(render(text))
        core, stand_in = text.strip(), secrets.token_hex()
        rendered = render(text.replace(core, stand_in))
        if stand_in not in rendered:  # the template changes its input
            return self.plain(render(text))
        return self._inserted(rendered, stand_in, core)

    def _inserted(self, rendered: str, stand_in: str, text: str) -> list[int]:
        """Encode a rendering, with ``text`` in place of the stand-in as plain text."""
        if (copy := self._renamed_control) is not None:
            return copy.encode(copy.rename(rendered).replace(stand_in, text))
        first, *parts = rendered.split(stand_in)
        ids = self._with_control(first)
        for part in parts:
            ids += self.plain(text) + self._with_control(part)
        return ids

    def _rendered(self, turns: Sequence[tuple[str, str]], *, prompt: bool = True) -> str:
        conversation = [{"role": role, "content": text} for role, text in turns]
        try:
            rendered: Any = self._tokenizer.apply_chat_template(
                conversation, add_generation_prompt=prompt, tokenize=False, **self._options
            )
        except Exception as error:  # a template is the model author's program
            name, cause = self._tokenizer.name_or_path, f"{type(error).__name__}: {error}"
            raise PolicyError(
                "policy.model",
                f"the chat template of {name!r} fails: {cause}",
                "Choose another model, or correct its chat template.",
            ) from error
        return str(rendered)

    def _with_control(self, text: str) -> list[int]:
        """Encode text; control tokens that it spells become their ids."""
        ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=False
        )
        return ids


class _RenamedTokens:
    """A copy of a tokenizer in which control tokens have names that no text can spell."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, rules: dict[str, Any], control: Collection[int]
    ) -> None:
        self._original = tokenizer
        self._names = {
            token.content: f"\ue000{secrets.token_hex()}\ue001"
            for i, token in tokenizer.added_tokens_decoder.items()
            if i in control
        }
        self._tokens = {tokenizer.convert_tokens_to_ids(each): each for each in self._names}
        for each in rules["added_tokens"]:
            each["content"] = self._name(each["content"])
        model = rules["model"]
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            model["vocab"] = {self._name(word): i for word, i in vocab.items()}
        else:
            model["vocab"] = [[self._name(word), score] for word, score in vocab]
        if model.get("unk_token"):
            model["unk_token"] = self._name(model["unk_token"])
        rules |= {"post_processor": None, "padding": None, "truncation": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(rules))

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, control: Collection[int]
    ) -> _RenamedTokens | None:
        """Copy a tokenizer; None if it is not a fast one."""
        rules = _rules(tokenizer)
        return None if rules is None else cls(tokenizer, rules, control)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def rename(self, text: str) -> str:
        """Write the control tokens that the tokenizer finds in ``text`` with their other names."""
        encoded = self._original(
            text, add_special_tokens=False, split_special_tokens=False, return_offsets_mapping=True
        )
        spans = list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))
        for i, (begin, end) in reversed(spans):
            if (token := self._tokens.get(i)) is not None:
                # White space that the token takes in stays.
                span = text[begin:end]
                name = span.replace(token, self._names[token]) if token in span else None
                text = text[:begin] + (name or self._names[token]) + text[end:]
        return text

    def _name(self, token: str) -> str:
        return self._names.get(token, token)


def _rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any] | None:
    """Return the rules of a fast tokenizer, in the layout of tokenizer.json."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    rules: dict[str, Any] = json.loads(backend.to_str())
    rules.pop("padding", None)
    rules.pop("truncation", None)
    return rules


def check_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the chat template reads these options."""
    template = str(tokenizer.chat_template or "")
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    for name, value in options.items():
        if name in {*parameters, "messages"} or not re.search(rf"\b{re.escape(name)}\b", template):
            has = "does not have this argument" if template else "is missing"
            raise ConfigError(
                f"policy.chat_template_kwargs.{name}", value, f"The chat template {has}: remove it."
            )
