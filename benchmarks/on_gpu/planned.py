"""What the node's plan says that an update takes, where there is such a plan."""

from __future__ import annotations

import importlib
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from on_gpu.models import config_of
from on_gpu.section import Settings

PLAN = "node.plan"
PHASES = ("update", "step")


def planned_gb(
    settings: Settings, size: str, learner: dict[str, Any], policy: dict[str, Any], sides: Any
) -> float | None:
    """Gigabytes of tensors on the device while the policy learns; None without a plan.

    Args:
        learner, policy: keys of these tables of the configuration.
        sides: tokens of a prompt, groups, answers of each, and tokens of an answer.
    """
    if find_spec(PLAN) is None:
        return None
    from node.config.config import Config

    plan: Any = importlib.import_module(f"{PLAN}.memory")
    shape_of: Any = importlib.import_module(f"{PLAN}.model_shape").shape_of
    prompt, groups, answers, tokens = sides
    keys = {
        **{f"learner.{name}": value for name, value in learner.items()},
        **{f"policy.{name}": value for name, value in policy.items()},
        "engine.group_size": answers,
        "engine.max_new_tokens": tokens,
        "mixture.local": groups,
        "mixture.external": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        config_of(size).save_pretrained(folder)
        shape = shape_of(Path(folder), size)
    kind, place = ("cuda", "device") if settings.on_gpu else ("cpu", "memory")
    told = plan.estimate(shape, Config.with_overrides(keys), device=kind, prompt=prompt)
    beside = plan.GPU_PROGRAM if settings.on_gpu else plan.PROGRAM + plan.OTHERS
    peak = max(sum(p.at(place) for p in told.parts if phase in p.phases) for phase in PHASES)
    return round((peak - beside) / 1e9, 2)
