import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import ModelInfo, constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from node.errors import ConfigError
from node.policy import model_source
from node.policy.model_files import PolicyError
from node.policy.model_source import check_model, config_folder, wanted
from tests.node.programs import python
from tests.support import CHAT, character_tokenizer, loaded, random_policy, saved_policy

HUB = "somebody/some-model"
MISSING = RepositoryNotFoundError.__new__(RepositoryNotFoundError)


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def hub(monkeypatch, answer=None, **about):
    """Mock the hub's answer; return the requested models and timeouts."""
    requests = []

    def info(self, model, timeout):
        requests.append((model, timeout))
        if answer:
            raise answer
        return ModelInfo(id=model, **about)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    return requests


def test_local_models_skip_the_hub(tmp_path, monkeypatch):
    requests = hub(monkeypatch, MISSING)
    saved_policy(tmp_path / "model")
    for model in ("tiny", "tiny-wide", str(tmp_path / "model")):
        check_model(model)
    here = str(tmp_path / "model" / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: here)
    check_model(HUB)
    assert requests == []


def test_path_like_names_are_never_sent_to_the_hub(monkeypatch, tmp_path):
    requests = hub(monkeypatch)
    for model in ("/nowhere", "./nowhere", "~/nowhere", "a/b/c", "C:\\models"):
        with pytest.raises(PolicyError, match=r"policy\.model: .*no such folder.*save_pretrained"):
            check_model(model)
    with pytest.raises(PolicyError, match=r"no config\.json in this folder"):
        check_model(str(tmp_path))
    assert requests == []


def test_shipped_model_typo_gets_suggestion_without_hub(monkeypatch):
    requests = hub(monkeypatch)
    for slip, meant in (("tinny", "tiny"), ("tiny-wid", "tiny-wide"), ("Tiny", "tiny")):
        told = rf"{slip}' \(no such folder here\).*mean '{meant}'\?"
        with pytest.raises(PolicyError, match=told):
            check_model(slip)
    check_model("gpt2")
    check_model("somebody/tinny")
    assert [model for model, _ in requests] == ["gpt2", "somebody/tinny"]


def test_hub_errors_are_reported_and_offline_uses_only_cache(monkeypatch):
    requests = hub(monkeypatch)
    check_model(HUB)
    assert [model for model, _ in requests] == [HUB]
    no_route = OSError("no route"), "is unreachable: no route"
    for answer, said in ((MISSING, "no such model on the hub"), no_route):
        hub(monkeypatch, answer)
        with pytest.raises(PolicyError, match=said):
            check_model(HUB)
    requests = hub(monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match="not in the cache, and HF_HUB_OFFLINE"):
        check_model(HUB)
    assert requests == []


@pytest.mark.parametrize("answer", [TimeoutError(), None])
def test_hub_timeout_error_suggests_a_fix(monkeypatch, answer):
    monkeypatch.setattr(model_source, "PATIENCE_SECONDS", 0.01)
    waits = threading.Event()
    if answer:
        hub(monkeypatch, answer)
    else:
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: waits.wait(60))
    with pytest.raises(PolicyError, match=r"did not answer within.*HF_ENDPOINT.*name a folder"):
        check_model(HUB)
    waits.set()


def test_hub_timeout_accepts_only_positive_whole_seconds(monkeypatch):
    name, requests = model_source.PATIENCE_VARIABLE, hub(monkeypatch)
    for given in ("", "0", "soon", "-3", "1.5"):
        monkeypatch.setenv(name, given)
        with pytest.raises(ConfigError, match=f"{name}.*whole seconds"):
            check_model(HUB)
    monkeypatch.setenv(name, "30")
    check_model(HUB)
    assert requests == [(HUB, 30.0)]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["model.safetensors", "consolidated.safetensors", "original/a.json"], "model.safetensors"),
        (["weights.safetensors", "pytorch_model.bin", "model.gguf"], "weights.safetensors"),
        (["pytorch_model.bin", "training_args.bin", "model.h5"], "pytorch_model.bin"),
    ],
)
def test_only_one_weight_format_is_downloaded(names, read):
    texts = ["config.json", "merges.txt", "chat_template.jinja"]
    assert wanted([*names, *texts, "README.md"]) == [*texts, read]


@pytest.mark.parametrize("refused", [GatedRepoError.__new__(GatedRepoError), None])
def test_gated_model_requires_granted_access(monkeypatch, refused):
    hub(monkeypatch, gated="manual")
    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", Mock(side_effect=refused))
    said = r"it is gated.*Accept them.*hf auth login"
    with pytest.raises(PolicyError, match=said) if refused else nullcontext():
        check_model(HUB)


@pytest.fixture
def folder(tmp_path):
    return saved_policy(tmp_path / "model")


def write(folder, name="config.json", **keys):
    """Set keys of a JSON file; None removes a key."""
    path = folder / name
    found = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def shard(folder, *, kept=2):
    """Split the weights over several files, and keep the first ``kept``."""
    policy = random_policy()
    (folder / "model.safetensors").unlink()
    policy.model.save_pretrained(folder, max_shard_size="150KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    for path in shards[kept:]:
        path.unlink()


def quantised(method):
    return lambda folder: write(folder, quantization_config={"quant_method": method, "bits": 4})


def of_class(name, said=""):
    told = f"{said or f'it is {name}'}.*Name a causal language model"
    return lambda folder: write(folder, architectures=[name]), told


def with_file(name, data):
    return lambda folder: (folder / name).write_bytes(data) and None


def as_gguf(folder):
    for path in folder.iterdir():
        path.unlink()
    (folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF")


def grow(folder):
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["seven", "eleven"])
    tokenizer.save_pretrained(folder)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "gptq": (
        quantised("gptq"),
        r"it is quantized \(gptq\).*Name the checkpoint.*policy\.lora_rank",
    ),
    "awq": (quantised("awq"), r"it is quantized \(awq\).*Name the checkpoint"),
    "bitsandbytes": (quantised("bitsandbytes"), r"quantized \(bitsandbytes\).*Name the checkpoint"),
    "a folder of GGUF": (as_gguf, r"GGUF holds weights.*llama\.cpp.*Name the checkpoint"),
    "an encoder": of_class("BertForMaskedLM", "it is BertForMaskedLM, which does not generate"),
    "an embedding model": of_class("Qwen3Model", "it is Qwen3Model, which does not generate text"),
    "a reward model": of_class("Qwen3ForSequenceClassification"),
    "an encoder with a decoder": (
        lambda folder: write(folder, is_encoder_decoder=True),
        r"it is an encoder with a decoder.*Name a causal language model",
    ),
    "a tokenizer with more tokens": (grow, r"its tokenizer knows 100 tokens.*98.*Copy"),
    "another tokenizer": (
        lambda folder: write(folder, vocab_size=151_936),
        r"its tokenizer knows 98 tokens and the model 151936.*Copy the model's original tokenizer",
    ),
    "missing shards": (
        lambda folder: shard(folder, kept=1),
        r"\d of the \d files of its weights are missing: model-00002.*Download the model again",
    ),
    "a short file": (cut, r"model\.safetensors ends after \d+ of \d+ bytes.*Download the model"),
    "an empty file": (
        with_file("model.safetensors", b""),
        r"model\.safetensors ends after 0 of \d+ bytes.*Download",
    ),
    "a damaged header": (
        with_file("model.safetensors", b"\2" + b"\0" * 7 + b"{]"),
        r"the header of model\.safetensors is damaged.*Download",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        r"there is neither model\.safetensors nor pytorch_model\.bin.*Download",
    ),
    "a configuration that is cut off": (
        with_file("config.json", b'{"model_type": "qw'),
        r"config\.json is not JSON.*Download",
    ),
    "an index that is a list": (
        with_file("model.safetensors.index.json", b'{"weight_map": [1]}'),
        r"its files have a wrong value: AttributeError.*Download",
    ),
}
WRONG_VALUES = (
    ("config.json", {"num_hidden_layers": "two"}),
    ("config.json", {"num_hidden_layers": -1}),
    ("config.json", {"hidden_size": 24}),
    ("config.json", {"num_attention_heads": 0}),
    ("config.json", {"pad_token_id": 10**6}),
    ("config.json", {"model_type": ["qwen3"]}),
    ("config.json", {"attn_implementation": 5}),
    ("generation_config.json", {"eos_token_id": "end"}),
    ("tokenizer_config.json", {"eos_token": 5}),
    ("tokenizer_config.json", {"tokenizer_class": 5}),
)


@pytest.mark.parametrize("case", BAD)
def test_untrainable_model_gives_one_line_error_with_advice(case, folder):
    spoil, said = BAD[case]
    spoil(folder)
    for verify in (check_model, loaded):
        with pytest.raises(PolicyError, match=rf"policy\.model: '{folder}' \(.*{said}") as told:
            verify(str(folder))
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(("name", "keys"), WRONG_VALUES)
def test_wrong_value_in_model_file_gives_one_line_error(name, keys, folder):
    write(folder, name, **keys)
    with pytest.raises(PolicyError, match=rf"policy\.model: '{folder}' \(.+\)\. \w.+") as told:
        loaded(folder)
    assert "\n" not in str(told.value)


def adapter_alone(folder):
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")


def without_tokenizer(folder):
    write(folder, model_type="llama")
    for path in folder.glob("tokenizer*"):
        path.unlink()


UNREAD = {
    adapter_alone: "a LoRA adapter alone, of another model",
    without_tokenizer: "it has no tokenizer",
    lambda folder: write(folder, model_type="llava"): "no causal language model of its family",
    lambda folder: write(
        folder, intermediate_size=40
    ): "weight .* has another shape than in config",
}


@pytest.mark.parametrize("spoil", UNREAD)
def test_folder_error_names_why_it_is_not_a_text_model(spoil, folder):
    spoil(folder)
    expected = rf"'{folder}' \([^<>]*{UNREAD[spoil]}[^<>]*\)\. (Name|Download)"
    with pytest.raises(PolicyError, match=expected):
        loaded(folder)


@pytest.mark.parametrize("spoil", [quantised("gptq"), of_class("BertForMaskedLM")[0]])
def test_planning_rejects_untrainable_models(spoil, folder):
    spoil(folder)
    with pytest.raises(PolicyError, match=r"it is (quantized|BertForMaskedLM)"):
        config_folder(str(folder))


LACKING = {"num_hidden_layers": 3, "layer_types": None}, {"tie_word_embeddings": False}


@pytest.mark.parametrize("keys", [*LACKING, {"model_type": "bert"}])
def test_model_with_missing_weights_is_rejected(keys, folder):
    write(folder, **keys)
    with pytest.raises(PolicyError, match=r"lack \d+ weights?, such as \w+\.\S+.*Name a complete"):
        loaded(folder)


def test_check_accepts_complete_shards_and_rejects_gguf_files(folder):
    shard(folder, kept=99)
    write(folder, vocab_size=105)
    check_model(str(folder))
    gguf = folder / "model-Q8_0.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(PolicyError, match=r"GGUF holds weights.*Name the checkpoint"):
        check_model(str(gguf))


def test_incomplete_cache_is_rejected_only_when_offline(folder, monkeypatch):
    here = str(folder / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: here)
    shard(folder, kept=1)
    check_model(HUB)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match=r"files of its weights are missing"):
        check_model(HUB)


def test_loading_reports_a_missing_chat_template(folder):
    told: list[str] = []
    tokenizer = loaded(folder, None, told.append).tokenizer
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    loaded(folder, None, told.append)
    assert told == [f"{folder} has no chat template: prompts are plain text"]


def test_model_without_eos_token_is_rejected(folder):
    write(folder, "tokenizer_config.json", eos_token=None)
    write(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    with pytest.raises(PolicyError, match=r"has no end-of-sequence token.*Set eos_token in"):
        loaded(folder)


def test_model_check_does_not_import_torch_or_transformers(folder):
    code = (
        "import sys; from node.policy.model_source import check_model; "
        f"check_model({str(folder)!r}); assert not {{'torch', 'transformers'}} & set(sys.modules)"
    )
    python(code, check=True)
