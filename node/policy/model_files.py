"""Checks of a model's small files, before torch or the model is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from node.config.learning import PolicySection
from node.errors import ConfigError, NodeError
from swarm.common.util import counted

CONFIG = "config.json"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WHOLE = ("model.safetensors", "pytorch_model.bin")
GGUF = ".gguf"
WEIGHTS = (".safetensors", ".bin", ".pt", GGUF)
ADAPTER = "adapter_config.json"
OTHER_CONFIGS = "configuration_files"  # a key of transformers
CODED = (CONFIG, "tokenizer_config.json")  # files whose ``auto_map`` names code
LENGTH_BYTES = 8  # length of a safetensors file's header, little-endian, at its beginning
LEAST_SHARE = 0.9  # minimum share of a model's ids in its tokenizer; models round up slightly

_KERNEL = "_implementation"  # end of the keys of a configuration that may name a hub's kernel
_HEADLESS = re.compile(r"(?<!Head)(?<!Heads)Model$")
_CLASS = re.compile(r'"(?:[^"\\]*--)?(\w+)\.\w+"')  # a file and its class in an ``auto_map``
_OTHER_HEAD = re.compile(
    r"For(MaskedLM|PreTraining|NextSentencePrediction|MultipleChoice|QuestionAnswering"
    r"|(Sequence|Token|Image|Audio)Classification|RewardModel\w*)$"
)

NO_OTHER_FORMAT = (
    "Name the checkpoint that it was made from. If that is too large, set policy.dtype = "
    '"bfloat16" and policy.lora_rank.'
)
FETCH_AGAIN = "Download the model again, or copy the whole folder."


class PolicyError(NodeError):
    """The policy cannot be loaded."""

    exit_code = 2


@contextmanager
def usable(model: str) -> Iterator[None]:
    """Raise PolicyError for any error that a wrong value in a model's files causes.

    The libraries check few values and raise anything. Lack of memory passes through.
    """
    try:
        yield
    except (NodeError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
            raise
        reason = f"its files have a wrong value: {type(error).__name__}: {in_a_line(error)}"
        raise refused(model, reason, FETCH_AGAIN) from error


_MEANT = (
    ("Unrecognized configuration class", "transformers has no causal language model of its family"),
    ("instantiate the backend tokenizer", "it has no tokenizer"),
    ("has no attribute 'num_attention_heads'", "its family has no attention heads to plan for"),
)


def in_a_line(error: Exception) -> str:
    """Return an error's first line, or what it means where that does not tell."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return next((meaning for pattern, meaning in _MEANT if pattern in line), line)


def check_loaded(model: str, report: Mapping[str, Any]) -> None:
    """Raise PolicyError if transformers gave a model's weights random values."""
    if missing := sorted(report["missing_keys"]):
        reason = f"its files lack {counted(len(missing), 'weight')}, such as {missing[0]}"
        raise refused(model, reason, "Name a complete causal language model.")
    for name, *_ in sorted(report["mismatched_keys"]):
        raise refused(model, f"its weight {name} has another shape than in {CONFIG}", FETCH_AGAIN)


def _named(check: Callable[[Path, str], None]) -> Callable[[Path, str], None]:
    @wraps(check)
    def checked(folder: Path, model: str) -> None:
        with usable(model):
            check(folder, model)

    return checked


@_named
def check_code(folder: Path, model: str) -> None:
    """Raise PolicyError if a model needs code of its own, or files outside its folder.

    Such code is never run, nor is a kernel of the hub that the configuration names. A known
    ``model_type`` is loaded by the class of ``transformers``. A saved policy has copies of the
    model's small files, so none may be a link to another file of this machine.
    """
    if link := next(_links_out(folder), None):
        remedy = "Replace it with the file itself, if the file belongs to the model."
        raise refused(model, f"{link.relative_to(folder)} is a link out of its folder", remedy)
    if (folder / ADAPTER).is_file():
        remedy = "Name the whole model, with the adapter merged into it."
        raise refused(model, f"{ADAPTER} has another model loaded in its place", remedy)
    tables = [_read(path, model) for name in CODED if (path := folder / name).is_file()]
    if any(OTHER_CONFIGS in table for table in tables):
        remedy = f"Remove {OTHER_CONFIGS} from {CONFIG}."
        raise refused(model, f"{OTHER_CONFIGS} has another file read instead of {CONFIG}", remedy)
    if kernel := next(_kernels(tables), None):
        reason = f"it needs its own code, which is never run: the kernel {kernel}"
        remedy = f"Remove the keys of {CONFIG} that end in {_KERNEL}."
        raise refused(model, reason, remedy)
    if not (maps := [auto_map for table in tables if (auto_map := table.get("auto_map"))]):
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = str(_read(folder / CONFIG, model).get("model_type"))
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        files = sorted({f"{name}.py" for name in _CLASS.findall(json.dumps(maps))})
        reason = f"it needs its own code, which is never run: {', '.join(files[:4]) or 'auto_map'}"
        remedy = f"Name a model type that transformers has a class for; {model_type!r} has none."
        raise refused(model, reason, remedy)


def _links_out(folder: Path) -> Iterator[Path]:
    """Yield links that leave a model's folder, except weights and the blobs of the hub's cache."""
    roots = [folder.resolve()]
    if folder.parent.name == "snapshots":
        roots.append((folder.resolve().parents[1] / "blobs").resolve())
    for path in folder.rglob("*"):
        if path.is_symlink() and path.suffix not in WEIGHTS:
            target = path.resolve()
            if not any(target.is_relative_to(each) for each in roots):
                yield path


def _kernels(value: Any, key: str = "") -> Iterator[str]:
    """Yield the repositories that are named, at any depth, as the code of a part."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _kernels(item, key if key.endswith(_KERNEL) else name)
    elif isinstance(value, list):
        for item in value:
            yield from _kernels(item, key)
    elif isinstance(value, str) and key.endswith(_KERNEL) and "/" in value:
        yield value


@_named
def check_kind(folder: Path, model: str) -> None:
    """Raise PolicyError unless a model is causal, unquantized and fits its tokenizer."""
    config = _read(folder / CONFIG, model)
    check_code(folder, model)
    if (quantization := config.get("quantization_config")) is not None:
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else "?"
        reason = f"it is quantized ({method}): such weights cannot be trained"
        raise refused(model, reason, NO_OTHER_FORMAT)
    classes = [str(each) for each in config.get("architectures") or ()]
    if config.get("is_encoder_decoder"):
        kind = "an encoder with a decoder"
    elif classes and all(_OTHER_HEAD.search(each) or _HEADLESS.search(each) for each in classes):
        kind = classes[0]
    else:
        kind = ""
    if kind:
        remedy = "Name a causal language model, such as one of a class that ends in ForCausalLM."
        raise refused(model, f"it is {kind}, which does not generate text", remedy)
    num_ids, num_known = _ids(config), _known(folder, model)
    if num_ids and num_known:
        check_vocabulary(model, num_ids, num_known)


def check_vocabulary(model: str, ids: int, known: int) -> None:
    """Raise PolicyError if the tokenizer knows more ids than the model, or far fewer."""
    if known > ids or known < LEAST_SHARE * ids:
        raise refused(
            model,
            f"its tokenizer knows {known} tokens and the model {ids}",
            "Copy the model's original tokenizer into its folder.",
        )


@_named
def check_weights(folder: Path, model: str) -> None:
    """Raise PolicyError unless a model's weight files are present and complete."""
    for index in INDEXES:
        if (folder / index).is_file():
            names = sorted(set(_read(folder / index, model).get("weight_map", {}).values()))
            break
    else:
        names = [name for name in WHOLE if (folder / name).is_file()][:1]
        if not names and any(folder.glob(f"*{GGUF}")):
            raise gguf(model)
        if not names:
            raise refused(model, f"there is neither {WHOLE[0]} nor {WHOLE[1]} in it", FETCH_AGAIN)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        cause = f"{len(missing)} of the {len(names)} files of its weights are missing: {missing[0]}"
        raise refused(model, cause, FETCH_AGAIN)
    for name in names:
        if cause := _incomplete(folder / name):
            raise refused(model, cause, FETCH_AGAIN)


def is_gguf(path: Path) -> bool:
    return path.suffix == GGUF and path.is_file()


def gguf(model: str) -> PolicyError:
    """Return the error for a GGUF file, or for a folder with nothing else."""
    return refused(model, "GGUF holds weights that are quantised for llama.cpp", NO_OTHER_FORMAT)


def _incomplete(path: Path) -> str:
    """Return why a weight file is incomplete; empty if it is complete or this is unknown."""
    size = path.stat().st_size
    if path.suffix != ".safetensors":
        return f"{path.name} is empty" if size == 0 else ""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        expected = LENGTH_BYTES + length
        if LENGTH_BYTES < expected <= size:
            try:
                tensors = json.loads(file.read(length))
                entries = (entry for name, entry in tensors.items() if name[:2] != "__")
                ends = [entry["data_offsets"][1] for entry in entries]
            except (ValueError, KeyError, TypeError, AttributeError, IndexError):
                return f"the header of {path.name} is damaged"
            expected += max(ends, default=0)
    if size < expected or size <= LENGTH_BYTES:
        return f"{path.name} ends after {size} of {max(expected, LENGTH_BYTES + 1)} bytes"
    return ""


def _ids(config: dict[str, Any]) -> int:
    """Return how many ids the model reads; 0 if its configuration does not say."""
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) else 0


def _known(folder: Path, model: str) -> int:
    """Return how many ids a fast tokenizer knows; 0 if there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return 0
    rules = _read(path, model)
    vocab = rules.get("model", {}).get("vocab") or ()
    ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
    ids += [each["id"] for each in rules.get("added_tokens") or ()]
    return max(ids, default=-1) + 1


def _read(path: Path, model: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        reason = f"{path.name} cannot be read: {error.strerror}"
        raise refused(model, reason, FETCH_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise refused(model, f"{path.name} is not JSON", FETCH_AGAIN) from error
    if not isinstance(content, dict):
        raise refused(model, f"{path.name} is not a JSON object", FETCH_AGAIN)
    return content


def refused(model: str, why: str, remedy: str) -> PolicyError:
    """Return the error for ``policy.model``, with the reason and what to do."""
    return PolicyError("policy.model", f"{model!r} ({why})", remedy)


def check_begun(config: PolicySection, begun: Mapping[str, Any]) -> None:
    """Raise ConfigError if the run started with another model, weight type or adapter."""
    _check_same("policy.model", config.model, begun["model"])
    _check_same("policy.dtype", config.dtype, begun["dtype"])
    _check_same("policy.lora_rank", config.lora_rank, begun.get("lora_rank", 0))
    if config.lora_rank:
        _check_same("policy.lora_alpha", config.lora_alpha, begun["lora_alpha"])
        _check_same("policy.lora_targets", list(config.lora_targets), begun["lora_targets"])


def _check_same(key: str, now: Any, saved: Any) -> None:
    """Compare a value with the checkpoint's; a model's folder may have moved."""
    moved = isinstance(now, str) and Path(now).is_absolute() and Path(now).name == Path(saved).name
    if now != saved and not moved:
        raise ConfigError(
            key,
            now,
            f"The checkpoints here start from {saved!r}: set it to that, or start a new run in "
            "another folder with node.run_dir.",
        )
