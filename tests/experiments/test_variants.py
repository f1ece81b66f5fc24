"""Variants of one model in a swarm of real nodes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.settings import Settings
from experiments.variants import VARIANTS, halve, run_variants, shorten_tokens
from node.errors import NodeError
from node.policy.model_source import shipped_folder
from tests.families.real import write_family

TEXT = "What is the remainder of the longest answer?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family("Qwen2.5", tmp_path_factory.mktemp("model"))


def test_half_of_a_model_is_every_second_layer(model: Path, tmp_path: Path):
    halve(model, tmp_path)
    whole, half = (AutoModelForCausalLM.from_pretrained(each) for each in (model, tmp_path))
    assert half.config.num_hidden_layers == (whole.config.num_hidden_layers + 1) // 2
    for kept, layer in zip(half.model.layers, whole.model.layers[::2], strict=True):
        for one, other in zip(kept.parameters(), layer.parameters(), strict=True):
            assert torch.equal(one, other)


def test_shorter_tokenizer_encodes_text_as_more_tokens(model: Path, tmp_path: Path):
    shorten_tokens(model, tmp_path / "short")
    before, after = (AutoTokenizer.from_pretrained(each) for each in (model, tmp_path / "short"))
    ids = after.encode(TEXT)
    assert len(ids) > len(before.encode(TEXT))
    assert after.decode(ids) == TEXT


def test_a_tokenizer_without_merges_is_refused(tmp_path: Path):
    with pytest.raises(NodeError, match="byte-pair"):
        shorten_tokens(shipped_folder("tiny"), tmp_path / "short")


def test_variants_train_together_and_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = tuple(replace(each, warm_start=min(1, each.warm_start)) for each in VARIANTS)
    monkeypatch.setattr("experiments.variants.VARIANTS", short)
    settings = Settings(rounds=2, answers="starter", bury=0, eval_tasks=4, model=str(model))
    table = run_variants(settings, tmp_path / "run", Console(quiet=True))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [each["node"] for each in results["together"]] == [each.name for each in VARIANTS]
    assert all(each["rounds"] == 2 for each in (*results["together"], *results["alone"]))
    assert all(not each["taken"] for each in results["alone"])
    assert all(f"groups of {each.name} " in table for each in VARIANTS)
