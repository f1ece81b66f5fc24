"""Models that cannot be trained are told from their small files, before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from node.config.learning import PolicySection
from node.policy.model_files import PolicyError
from node.policy.model_source import check_model
from node.policy.policy import Policy
from tests.support import CHAT, character_tokenizer, random_policy, saved_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved_policy(tmp_path / "model")


def write(folder: Path, name: str = "config.json", **keys: object) -> None:
    """Set keys of a json file; None takes one out."""
    path = folder / name
    found = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def shard(folder: Path, *, kept: int = 2) -> None:
    """Split the weights over two files, of which so many are there."""
    policy = random_policy()
    (folder / "model.safetensors").unlink()
    policy.model.save_pretrained(folder, max_shard_size="150KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    for path in shards[kept:]:
        path.unlink()


def quantised(method: str) -> Callable[[Path], None]:
    return lambda folder: write(folder, quantization_config={"quant_method": method, "bits": 4})


def as_gguf(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF")


def grow(folder: Path) -> None:
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["seven", "eleven"])
    tokenizer.save_pretrained(folder)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "gptq": (
        quantised("gptq"),
        r"it is quantised \(gptq\).*Name the checkpoint.*policy\.lora_rank",
    ),
    "awq": (quantised("awq"), r"it is quantised \(awq\).*Name the checkpoint"),
    "bitsandbytes": (quantised("bitsandbytes"), r"quantised \(bitsandbytes\).*Name the checkpoint"),
    "a folder of GGUF": (as_gguf, r"GGUF holds weights.*llama\.cpp.*Name the checkpoint"),
    "an encoder": (
        lambda folder: write(folder, architectures=["BertForMaskedLM"]),
        r"it is BertForMaskedLM, which writes no text.*Name a causal language model",
    ),
    "an embedding model": (
        lambda folder: write(folder, architectures=["Qwen3Model"]),
        r"it is Qwen3Model, which writes no text.*Name a causal language model",
    ),
    "a reward model": (
        lambda folder: write(folder, architectures=["Qwen3ForSequenceClassification"]),
        r"it is Qwen3ForSequenceClassification.*Name a causal language model",
    ),
    "an encoder with a decoder": (
        lambda folder: write(folder, is_encoder_decoder=True),
        r"it is an encoder with a decoder.*Name a causal language model",
    ),
    "a tokenizer with more tokens": (grow, r"its tokenizer knows 100 tokens and the model 98.*Put"),
    "another tokenizer": (
        lambda folder: write(folder, vocab_size=151_936),
        r"its tokenizer knows 98 tokens and the model 151936.*Put the tokenizer",
    ),
    "missing shards": (
        lambda folder: shard(folder, kept=1),
        r"\d of the \d files of its weights are missing: model-00002.*Fetch the model again",
    ),
    "a short file": (cut, r"model\.safetensors ends after \d+ of \d+ bytes.*Fetch the model again"),
    "an empty file": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"") and None,
        r"model\.safetensors ends after 0 of \d+ bytes.*Fetch",
    ),
    "a damaged header": (
        lambda folder: (
            (folder / "model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"{]") and None
        ),
        r"the header of model\.safetensors is damaged.*Fetch",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        r"there is neither model\.safetensors nor pytorch_model\.bin.*Fetch",
    ),
    "a configuration that is cut off": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "qw') and None,
        r"config\.json is not JSON.*Fetch",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_model_that_cannot_be_trained_is_one_line_with_the_remedy(case, folder):
    spoil, said = BAD[case]
    spoil(folder)
    for look in (check_model, lambda model: Policy.load(PolicySection(model=model, device="cpu"))):
        with pytest.raises(PolicyError, match=rf"policy\.model: '{folder}' \(.*{said}") as told:
            look(str(folder))
        assert "\n" not in str(told.value)


def test_whole_shards_and_a_model_with_a_few_ids_to_spare_are_taken(folder):
    shard(folder, kept=99)
    write(folder, vocab_size=105)
    check_model(str(folder))


def test_a_gguf_file_is_told_as_what_it_is(tmp_path):
    file = tmp_path / "model-Q8_0.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(PolicyError, match=r"GGUF holds weights.*Name the checkpoint"):
        check_model(str(file))


def test_what_the_cache_has_half_of_is_refused_where_the_rest_cannot_be_fetched(
    folder, monkeypatch
):
    here = str(folder / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: here)
    shard(folder, kept=1)
    check_model("somebody/some-model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match=r"files of its weights are missing"):
        check_model("somebody/some-model")


def test_a_model_without_a_chat_template_is_loaded_and_that_is_told(folder):
    told: list[str] = []
    policy = Policy.load(PolicySection(model=str(folder), device="cpu"), tell=told.append)
    assert told == [f"{folder} has no chat template: prompts are given to it as plain text"]
    tokenizer = policy.tokenizer
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    Policy.load(PolicySection(model=str(folder), device="cpu"), tell=told.append)
    assert len(told) == 1


def test_a_model_without_an_end_of_sequence_token_is_refused(folder):
    write(folder, "tokenizer_config.json", eos_token=None)
    write(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    with pytest.raises(PolicyError, match=r"has no end-of-sequence token.*Set eos_token in"):
        Policy.load(PolicySection(model=str(folder), device="cpu"))


def test_looking_at_a_model_imports_neither_torch_nor_transformers(folder):
    code = (
        "import sys; from node.policy.model_source import check_model; "
        f"check_model({str(folder)!r}); assert not {{'torch', 'transformers'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
