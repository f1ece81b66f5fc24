"""Small models of common families, with their kind of tokenizer and chat template.

The tokenizers are trained here on the project's own pages: byte pairs as in Qwen, Llama 3,
SmolLM3, Phi-4 and OLMo 2, or characters with byte fallback as in Gemma and Mistral. The templates
have the structure of the families' templates, and the end tokens are the published ones.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.families.small import small_config

PAGES = Path(__file__).resolve().parents[2] / "docs"
WORDS = 600
"""Token ids, without special tokens."""
CONTEXT = 256
_PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\w]?\w+|\d{1,3}| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+"
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
SWITCH = (
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
_LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
_GEMMA = (
    "<bos>{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_PHI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)
_OLMO = (
    "<|endoftext|>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{{ '<|endoftext|>\n' if m.role == 'assistant' else '\n' }}{% endfor %}"
    "{{ '<|assistant|>\n' }}"
)
_MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}</s>"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}"
)
QUIET = {"show_progress": False}
_QWEN_MARKS = ("<|im_start|>", "<|endoftext|>")
_QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
_HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>")


@dataclass(frozen=True, slots=True)
class RealFamily:
    """Parts of a family.

    Attributes:
        model_type: Type of its configuration.
        ends: Special token that ends a turn.
        marks: Other special tokens.
        eos: ``eos_token`` of the tokenizer, if it does not end a turn.
        declared: End tokens of the generation config; ``eos`` if empty.
        bytes: Whether the tokenizer pairs bytes; otherwise characters, with byte fallback.
        changes: Fields of the configuration to change.
    """

    model_type: str
    template: str
    ends: str
    marks: tuple[str, ...]
    bytes: bool = True
    eos: str = ""
    declared: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)


_LLAMA_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_PHI_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0] * 6,
    "long_factor": [2.0] * 6,
    "original_max_position_embeddings": 192,
}
REAL = {
    "Qwen2.5": RealFamily(
        "qwen2", _SYSTEM + _CHATML, "<|im_end|>", _QWEN_MARKS, declared=_QWEN_ENDS
    ),
    "Qwen3": RealFamily("qwen3", _CHATML + SWITCH, "<|im_end|>", _QWEN_MARKS, declared=_QWEN_ENDS),
    "Llama 3": RealFamily(
        "llama",
        _LLAMA3,
        "<|eot_id|>",
        _HEADERS,
        declared=("<|end_of_text|>", "<|eot_id|>"),
        changes={"rope_parameters": _LLAMA_ROPE},
    ),
    "SmolLM3": RealFamily("smollm3", _SYSTEM + _CHATML + SWITCH, "<|im_end|>", _QWEN_MARKS),
    "Gemma 3": RealFamily(
        "gemma3_text",
        _GEMMA,
        "<end_of_turn>",
        ("<bos>", "<start_of_turn>"),
        bytes=False,
        eos="<eos>",
        declared=("<eos>", "<end_of_turn>"),
    ),
    "Phi-4-mini": RealFamily(
        "phi3",
        _PHI,
        "<|end|>",
        ("<|user|>", "<|assistant|>"),
        eos="<|endoftext|>",
        changes={"rope_parameters": _PHI_ROPE, "original_max_position_embeddings": 192},
    ),
    "OLMo 2": RealFamily("olmo2", _OLMO, "<|endoftext|>", ("<|user|>", "<|assistant|>")),
    "Mistral": RealFamily("mistral", _MISTRAL, "</s>", ("<s>", "[INST]", "[/INST]"), bytes=False),
    "Qwen3-MoE": RealFamily(
        "qwen3_moe", _CHATML + SWITCH, "<|im_end|>", _QWEN_MARKS, declared=_QWEN_ENDS
    ),
}


def write_family(name: str, folder: Path) -> Path:
    family = REAL[name]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(family.bytes)),
        eos_token=family.eos or family.ends,
        pad_token="<pad>",
        additional_special_tokens=[family.ends, *family.marks],
        chat_template=family.template,
    )
    config = small_config(
        family.model_type,
        **{
            "vocab_size": len(tokenizer) + 8,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "max_position_embeddings": CONTEXT,
            **family.changes,
        },
    )
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    if family.declared:
        ends = tokenizer.convert_tokens_to_ids(list(family.declared))
        model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _texts() -> Sequence[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))[:6]]


@cache
def _trained(of_bytes: bool) -> str:
    """Return a trained tokenizer as JSON."""
    if of_bytes:
        tokenizer = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, **QUIET)
        tokenizer.train_from_iterator(_texts(), trainer)
        return tokenizer.to_str()
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    words = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(words)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["<unk>", *bytes_], **QUIET)
    tokenizer.train_from_iterator(_texts(), trainer)
    # Byte tokens become ordinary ones, so that text that spells one is not encoded as it.
    rules = json.loads(tokenizer.to_str())
    rules["added_tokens"] = [each for each in rules["added_tokens"] if each["content"] == "<unk>"]
    return json.dumps(rules)
