"""The policy: a causal language model with its tokenizer, on one device."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import Embedding
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    TextIteratorStreamer,
)
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.logging import disable_progress_bar

from node.config.learning import PolicySection
from node.errors import ConfigError, NodeError
from node.policy.device import device_named, disable_cudnn_attention
from node.policy.encoding import PromptEncoder, check_options, hidden_ids
from node.policy.fast_layers import fuse_norms, quicken
from node.policy.model_files import PolicyError, check_loaded, check_vocabulary, refused, usable
from node.policy.model_source import SHIPPED, located, no_folder, no_model
from swarm.common.util import Say

if TYPE_CHECKING:
    from node.policy.lora import Adapter

log = logging.getLogger(__name__)

UNBOUNDED = 1 << 20


def context_length(config: PreTrainedConfig, name: str) -> int:
    """Return the maximum prompt plus completion tokens, equal in every forward pass.

    Longrope models rotate every token differently beyond their original length (Ding et al., arXiv
    2402.13753), so a token's log-prob would depend on the later length of the text. For these
    models it is the original length.
    """
    text: Any = config.get_text_config()
    maximum = int(getattr(text, "max_position_embeddings", UNBOUNDED))
    rotations = getattr(text, "rope_parameters", None) or {}
    configs = [rotations, *(each for each in rotations.values() if isinstance(each, dict))]
    longrope = [each for each in configs if each.get("rope_type") == "longrope"]
    original = min([maximum, *(int(each["original_max_position_embeddings"]) for each in longrope)])
    if original < maximum:
        log.warning(
            "%s: the context of %d tokens is limited to %d, its original one: beyond it, "
            "longrope changes the rotation of every token",
            name,
            maximum,
            original,
        )
    return original


# These libraries' progress bars and messages would break the node's tables and panels, so their
# messages go to the root logger.
disable_progress_bar()  # type: ignore[no-untyped-call]
for _library in ("transformers", "huggingface_hub"):
    logging.getLogger(_library).handlers.clear()
    logging.getLogger(_library).propagate = True


PROBE_ROWS, PROBE_TOKENS = 32, 8


class Policy:
    """A causal language model, its tokenizer and its number of updates.

    Attributes:
        model: always in evaluation mode (dropout would make log-probs incomparable).
        chat_template_kwargs: arguments of the chat template in addition to the question.
        adapter: the trained part of the model; None if all of it is trained.
        version: optimizer steps so far; the learner increments it.
        encoding: 32-byte digest of tokenizer, chat template with its options, and prompt format.
            Equal digests mean equal ids for equal text.
        eos_id: ends a completion and is trained on. With a chat template it is the token that ends
            an assistant turn there, which need not be the tokenizer's ``eos_token``.
        stop_ids: every id that ends a completion, including ``eos_id``.
        pad_id: fills short rows; never attended to and never trained on.
        special_ids: ids that decode to no text, see :func:`encoding.hidden_ids`.
        vocabulary: number of ids that the model can read.
        context_length: maximum prompt plus completion tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        adapter: Adapter | None = None,
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.model = model
        self.adapter = adapter
        self.model.train(False)
        quicken(model)
        fuse_norms(model)
        self.tokenizer = tokenizer
        self.chat_template_kwargs = chat_template_kwargs
        self.name = name
        self.version = 0
        self.device = model.device
        disable_cudnn_attention(self.device)
        self.vocabulary = int(cast(Embedding, model.get_input_embeddings()).num_embeddings)
        self.special_ids = hidden_ids(tokenizer, self.vocabulary)
        eos_id, declared = tokenizer.eos_token_id, _declared_ends(model, tokenizer)
        self._encoder = PromptEncoder(tokenizer, self.special_ids, declared, chat_template_kwargs)
        ends = [each for each in (self._encoder.turn_end, eos_id, *declared) if each is not None]
        if not ends:
            raise PolicyError(
                "policy.model",
                f"{name!r} has no end-of-sequence token",
                "Set eos_token in its tokenizer_config.json.",
            )
        self.eos_id = int(ends[0])
        self.stop_ids = tuple(dict.fromkeys((*declared, self.eos_id)))
        self.pad_id = self.eos_id if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.context_length = context_length(model.config, name)
        self.encoding = self._encoder.digest(self.eos_id)
        opening: list[int] = tokenizer.encode("", add_special_tokens=True)
        bos = tokenizer.bos_token_id
        self._prefix = opening[:1] if bos is not None and opening[:1] == [bos] else []

    @classmethod
    def load(
        cls,
        config: PolicySection,
        adapter: Path | None = None,
        tell: Callable[[str], None] = log.info,
    ) -> Policy:
        """Load model and tokenizer.

        ``adapter`` is a folder written by :meth:`save_adapter`, to continue. ``tell`` receives
        download progress, and a note if prompts will be plain text. Raises PolicyError: nothing
        loadable under ``config.model``, no such device, or a silent hub; ConfigError: the model
        cannot have the adapter, peft is not installed, or the chat template has no such option.
        """
        device = device_named(config.device)
        with usable(config.model):
            model, tokenizer = _loaded(config, tell)
            ids = model.get_input_embeddings().num_embeddings
            check_vocabulary(config.model, ids, len(tokenizer))
            if tokenizer.chat_template is None and config.model not in SHIPPED:
                tell(f"{config.model} has no chat template: prompts are plain text")
            check_options(tokenizer, options := config.chat_template_kwargs)
        new_adapter = adapter_of(model, config, adapter) if config.lora_rank else None
        with usable(config.model):
            return cls(model.to(device), tokenizer, config.model, new_adapter, options)

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a prompt: one user turn of the chat template, or else BOS and plain text."""
        if self.tokenizer.chat_template is None:
            return self._prefix + self._encoder.plain(text)
        return self._encoder.turn(text)

    def encode_observation(self, text: str) -> list[int]:
        """Encode an environment's response, from after the end of the policy's turn on.

        It is one more user turn of the chat template, or a line of its own without a template.
        Raises PolicyError if the template does not take a second turn.
        """
        if self.tokenizer.chat_template is None:
            return self._encoder.plain(f"\n{text}\n")
        return self._encoder.next_turn(text)

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raise ValueError if a prompt is empty or leaves no room in the context."""
        if not 0 < len(ids) < self.context_length:
            raise ValueError(
                f"a prompt of {len(ids)} tokens leaves no room for a completion in a context of "
                f"{self.context_length}; use shorter prompts or a model with a longer one"
            )

    def encode_completion(self, text: str, stopped: bool) -> list[int]:
        """Encode a completion, with ``eos_id`` at the end if it ``stopped``.

        Special tokens in the text become plain text, so no author writes control tokens.
        """
        return self._encoder.plain(text) + ([self.eos_id] if stopped else [])

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def spells(self, ids: Sequence[int], text: str, stopped: bool) -> bool:
        """Return whether the ids are exactly this completion: what is scored is trained.

        All ids are in the vocabulary, a stop id ends them if and only if ``stopped``, no other id
        decodes to nothing, and the rest decodes to ``text``. Added tokens in the rest must be those
        of :meth:`encode_completion`: others can be control tokens that look like plain text.
        """
        ends = len(ids) > 0 and ids[-1] in self.stop_ids
        body = ids[:-1] if ends else ids
        return (
            ends == stopped
            and all(0 <= i < self.vocabulary and i not in self.special_ids for i in body)
            and self.decode(body) == text
            and self._encoder.spells(body, text)
        )

    @torch.inference_mode()
    def probe(self) -> None:
        """Run one forward pass the size of a small decoding step, to time this machine."""
        ids = torch.full((PROBE_ROWS, PROBE_TOKENS), self.pad_id, device=self.device)
        self.model(input_ids=ids)

    def merged(self, into: Policy | None = None) -> Policy:
        """Return the policy with plain weights: itself, or a copy with the adapter merged.

        ``into`` is such a copy from before; its weights are replaced in place. Raises NodeError if
        a GPU has no memory for one.
        """
        if self.adapter is None:
            return self
        merged = copy.copy(self)
        try:
            merged.model = self.adapter.merged(None if into is None else into.model)
        except torch.OutOfMemoryError as error:
            raise NodeError(
                "memory ran out while adapters were merged into a copy of their weights",
                None,
                "Decrease learner.micro_batch_tokens or engine.gpu_memory_utilization, or choose "
                "a smaller policy.model.",
            ) from error
        merged.adapter = None
        return merged

    def save(self, folder: Path) -> None:
        """Write model and tokenizer in the layout that ``transformers`` and vLLM load."""
        model = self.merged().model
        # For some models ``transformers`` refuses to write the generation config that it has read.
        unsettled(model).save_pretrained(folder)
        path = folder / GENERATION_CONFIG_NAME
        model.generation_config.to_json_file(path, keys_to_pop=["compile_config"])
        self.tokenizer.save_pretrained(folder)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in peft's layout, with the tokenizer."""
        assert self.adapter is not None
        self.adapter.save(folder)
        self.tokenizer.save_pretrained(folder)


def adapter_of(
    model: PreTrainedModel, config: PolicySection, folder: Path | None = None
) -> Adapter:
    """Add the configured adapter; raise ConfigError if the model or peft forbids it."""
    try:
        from node.policy.lora import Adapter
    except ImportError as error:
        raise ConfigError(
            "policy.lora_rank",
            config.lora_rank,
            f"peft is missing ({error}): run pip install '.[lora]' in the clone, or set it to 0.",
        ) from error
    rank, alpha, targets = config.lora_rank, config.lora_alpha, config.lora_targets
    return Adapter(model, rank=rank, alpha=alpha, targets=targets, folder=folder)


def unsettled(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the model object with a default generation config; weights are shared."""
    clone = copy.copy(model)
    clone.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return clone


def _loaded(config: PolicySection, tell: Say) -> tuple[Any, PreTrainedTokenizerBase]:
    try:
        source = located(config.model, tell)
        AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        loader: Any = AutoModelForCausalLM
        model, report = loader.from_pretrained(
            source,
            dtype=getattr(torch, config.dtype),
            trust_remote_code=False,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except (OSError, ValueError, KeyError) as error:
        raise no_model(config.model, no_folder(config.model) or error) from error
    except UnpicklingError as error:
        reason = "its weights are damaged, or pickled with more than tensors, which is not loaded"
        raise refused(config.model, reason, "Name a model with safetensors files.") from error
    check_loaded(config.model, report)
    return model, tokenizer


def _declared_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the end-of-sequence ids of the generation config and of the tokenizer."""
    generation = getattr(model, "generation_config", None)
    declared = getattr(generation, "eos_token_id", None)
    ids = [declared] if isinstance(declared, int) else list(declared or ())
    eos_id = tokenizer.eos_token_id
    return [int(i) for i in (ids if eos_id is None or eos_id in ids else [*ids, eos_id])]


def stream(
    policy: Policy, prompt: Sequence[int], *, max_new_tokens: int, temperature: float | None = None
) -> Iterator[str]:
    """Yield one completion's text in pieces, as soon as they are known.

    A ``temperature`` of None takes the most probable token each time. Raises ValueError if the
    prompt leaves no room, and sampling errors after all earlier text.
    """
    policy.check_prompt(prompt)
    max_tokens = policy.context_length - len(prompt)
    streamer = TextIteratorStreamer(policy.tokenizer, skip_prompt=True, skip_special_tokens=True)
    errors: list[Exception] = []
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature is not None:
        # Sample from the whole vocabulary, like engines.
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    @torch.inference_mode()
    def write() -> None:
        try:
            ids = torch.tensor([list(prompt)], device=policy.device)
            # Many models come with a repetition penalty, which training does not use.
            unsettled(policy.model).generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                streamer=streamer,
                max_new_tokens=min(max_new_tokens, max_tokens),
                eos_token_id=list(policy.stop_ids),
                pad_token_id=policy.pad_id,
                **sampling,
            )
        except Exception as error:  # noqa: BLE001 - raised again where the text is read
            errors.append(error)
            streamer.end()  # type: ignore[no-untyped-call]

    writer = threading.Thread(target=write, name="stream", daemon=True)
    writer.start()
    yield from streamer
    writer.join()
    if errors:
        raise errors[0]
