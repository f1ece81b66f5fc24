"""Whether there is such a model, asked before anything of it is loaded."""

from __future__ import annotations

import threading
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import ModelInfo, constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from node.errors import ConfigError
from node.policy import model_source as model_source_module
from node.policy.model_files import PolicyError
from node.policy.model_source import check_model, wanted
from tests.support import saved_policy

HUB = "somebody/some-model"


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def hub(monkeypatch: pytest.MonkeyPatch, answer: Exception | None) -> list[str]:
    """A hub that answers so; what it was asked for."""
    asked: list[str] = []

    def info(self: object, model: str, timeout: float) -> ModelInfo:
        asked.append(model)
        if answer:
            raise answer
        return ModelInfo(id=model)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    return asked


def missing() -> RepositoryNotFoundError:
    return RepositoryNotFoundError.__new__(RepositoryNotFoundError)


def test_what_is_here_is_not_asked_for(tmp_path: Path, monkeypatch) -> None:
    asked = hub(monkeypatch, missing())
    saved_policy(tmp_path / "model")
    for model in ("tiny", "tiny-wide", str(tmp_path / "model")):
        check_model(model)
    here = str(tmp_path / "model" / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: here)
    check_model(HUB)
    assert asked == []


@pytest.mark.parametrize("model", ["/nowhere", "./nowhere", "~/nowhere", "a/b/c", "C:\\models"])
def test_a_name_that_can_only_be_a_folder_is_no_hub_id(model: str, monkeypatch) -> None:
    asked = hub(monkeypatch, None)
    with pytest.raises(PolicyError, match=r"policy\.model: .*no such folder.*save_pretrained"):
        check_model(model)
    assert asked == []


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"no config\.json in this folder"):
        check_model(str(tmp_path))


def test_a_model_that_the_hub_has_is_there(monkeypatch) -> None:
    asked = hub(monkeypatch, None)
    check_model(HUB)
    assert asked == [HUB]


@pytest.mark.parametrize(
    ("answer", "said"),
    [(missing(), "no such model at the hub"), (OSError("no route"), "cannot be asked: no route")],
)
def test_what_the_hub_answers_is_said(monkeypatch, answer: Exception, said: str) -> None:
    hub(monkeypatch, answer)
    with pytest.raises(PolicyError, match=said):
        check_model(HUB)


@pytest.mark.parametrize("answer", [TimeoutError(), None])
def test_a_hub_that_does_not_answer_is_told_with_what_to_do(
    monkeypatch, answer: Exception | None
) -> None:
    monkeypatch.setattr(model_source_module, "PATIENCE_SECONDS", 0.01)
    waits = threading.Event()
    if answer:
        hub(monkeypatch, answer)
    else:
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: waits.wait(60))
    with pytest.raises(PolicyError, match=r"did not answer within.*HF_ENDPOINT.*name a folder"):
        check_model(HUB)
    waits.set()


@pytest.mark.parametrize("given", ["", "0", "soon", "-3", "1.5"])
def test_seconds_for_a_slow_hub_are_a_whole_number(monkeypatch, given: str) -> None:
    monkeypatch.setenv(model_source_module.PATIENCE_VARIABLE, given)
    with pytest.raises(
        ConfigError, match=f"{model_source_module.PATIENCE_VARIABLE}.*whole seconds"
    ):
        check_model(HUB)


def test_a_slow_hub_is_given_the_seconds_that_the_user_names(monkeypatch) -> None:
    monkeypatch.setenv(model_source_module.PATIENCE_VARIABLE, "30")
    asked: list[float] = []

    def info(self: object, model: str, timeout: float) -> ModelInfo:
        asked.append(timeout)
        return ModelInfo(id=model)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    check_model(HUB)
    assert asked == [30.0]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["model.safetensors", "consolidated.safetensors", "original/a.json"], "model.safetensors"),
        (["weights.safetensors", "pytorch_model.bin", "model.gguf"], "weights.safetensors"),
        (["pytorch_model.bin", "training_args.bin", "model.h5"], "pytorch_model.bin"),
    ],
)
def test_of_weights_in_several_formats_one_is_fetched(names: list[str], read: str) -> None:
    texts = ["config.json", "merges.txt", "chat_template.jinja"]
    assert wanted([*names, *texts, "README.md"]) == [*texts, read]


@pytest.mark.parametrize("refused", [True, False])
def test_a_gated_model_is_for_those_who_were_let_in(monkeypatch, refused: bool) -> None:
    def info(self: object, model: str, timeout: float) -> ModelInfo:
        return ModelInfo(id=model, gated="manual")

    def auth_check(self: object, model: str) -> None:
        if refused:
            raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", auth_check)
    if not refused:
        check_model(HUB)
        return
    with pytest.raises(PolicyError, match=r"it is gated.*Accept them.*hf auth login"):
        check_model(HUB)


def test_offline_only_the_cache_counts(monkeypatch) -> None:
    asked = hub(monkeypatch, None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match="not in the cache, and HF_HUB_OFFLINE"):
        check_model(HUB)
    assert asked == []
