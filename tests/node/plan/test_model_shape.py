"""A model's configuration alone tells how large it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from node.plan.model_shape import shape_of
from node.policy.model_source import PolicyError, shipped_folder
from tests.node.plan.shapes import QWEN_HALF, REAL, written


@pytest.mark.parametrize("name", REAL)
def test_parameters_are_counted_as_the_makers_count_them(name: str, tmp_path: Path) -> None:
    config, parameters, active = REAL[name]
    shape = shape_of(written(tmp_path, config), name)
    assert (shape.parameters, shape.active) == (parameters, active)


@pytest.mark.parametrize("model", ["tiny", "tiny-wide"])
def test_parameters_are_those_of_the_model_that_is_loaded(model: str) -> None:
    folder = shipped_folder(model)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    shape = shape_of(folder, model)
    assert shape.parameters == loaded.num_parameters()
    assert shape.vocabulary == loaded.get_input_embeddings().num_embeddings


def test_an_adapter_is_as_large_as_counted(tmp_path: Path) -> None:
    from node.config.learning import PolicySection
    from node.policy.policy import Policy

    policy = Policy.load(PolicySection(model="tiny", lora_rank=4, device="cpu"))
    shape = shape_of(shipped_folder("tiny"), "tiny")
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert trained == 4 * shape.adapter_width


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "no-such-family"},
        {"model_type": "t5"},
        QWEN_HALF | {"hidden_size": "wide"},
        QWEN_HALF | {"num_attention_heads": 0},
    ],
)
def test_a_configuration_of_no_causal_model_is_refused_in_a_line(
    config: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(
        PolicyError, match=r"policy\.model: .*config\.json.*save_pretrained"
    ) as told:
        shape_of(written(tmp_path, config), "mine")
    assert "\n" not in str(told.value)
