"""A probe measures the plan's own model on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.plan.machine import this_machine
from node.plan.plan import plan, probed
from node.plan.speed import random_policy
from tests.node.plan.shapes import QWEN_HALF, laptop, written


def test_the_model_that_is_measured_is_the_planned_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 112, "intermediate_size": 256, "vocab_size": 2048}
    small = QWEN_HALF | sizes | {"num_hidden_layers": 2}
    found = plan(str(written(tmp_path, small)), laptop(), 128)
    policy = random_policy(found)
    assert policy.model.num_parameters() == found.shape.parameters
    assert str(policy.model.dtype) == f"torch.{found.choice.config.policy.dtype}"


def test_a_probe_replaces_the_estimate_and_nothing_else() -> None:
    found = plan("tiny", this_machine("cpu", Path()), 64)
    told: list[str] = []
    measured = probed(found, told.append)
    assert (found.speed.source, measured.speed.source) == ("estimated", "measured")
    assert (measured.choice, measured.shape) == (found.choice, found.shape)
    work = found.work
    assert measured.speed.generate == pytest.approx(
        work.written * work.answer / measured.speed.write
    )
    assert measured.speed.update >= work.read / measured.speed.read > 0
    assert told
