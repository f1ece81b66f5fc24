"""All sections, in the order in which they run: what matters most comes first."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

from on_gpu.section import Row, Section, Settings

OURS = ("pydantic", "cryptography", "msgpack", "safetensors", "psutil")
"""What any part of a node needs beside torch and transformers."""
SWARM = (
    *(*OURS, "filelock", "hivemind", "math_verify", "platformdirs", "prometheus_client"),
    *("reasoning_gym", "rich", "starlette", "typer", "uvicorn", "zeroconf", "zstandard"),
)
"""What a whole node needs."""


def _late(module: str, name: str) -> Callable[[Settings], Iterator[Row]]:
    """A section's function, from a module that imports torch when it is asked for."""

    def run(settings: Settings) -> Iterator[Row]:
        yield from getattr(importlib.import_module(f"on_gpu.{module}"), name)(settings)

    return run


def _section(
    name: str,
    title: str,
    budget: float,
    module: str,
    function: str,
    packages: tuple[str, ...] = OURS,
    gpus: int = 0,
) -> Section:
    return Section(name, title, budget, _late(module, function), gpus, packages)


SECTIONS = {
    each.name: each
    for each in (
        _section("machine", "This machine", 20, "whole", "machine", ()),
        _section("devices", "Devices", 20, "whole", "devices"),
        _section("correctness", "Engine against generate and learner", 45, "engine", "correctness"),
        _section("decode", "The decoding step", 60, "decode", "run"),
        _section("engine", "The engine `transformers`", 60, "engine", "speed"),
        _section("learner", "Updates of all weights", 60, "learner", "full"),
        _section("shared", "Updates with groups of peers", 60, "learner", "shared"),
        _section("step", "A node's step", 60, "step", "node"),
        _section("trl", "TRL's step", 60, "step", "trl", (*OURS, "trl", "datasets")),
        _section("swarm", "Eight nodes on one device", 60, "swarm", "run", SWARM),
        _section("lora", "Updates of adapters", 45, "learner", "lora", (*OURS, "peft")),
        _section("long-writing", "Writing long answers", 60, "engine", "long_answers"),
        _section("long", "Updates with long answers", 45, "learner", "long_answers"),
        _section("variants", "What makes an update smaller", 45, "learner", "variants"),
        _section("halving", "Too little memory", 30, "learner", "halving", gpus=1),
        _section("process", "An engine in a process of its own", 45, "beside", "transformers"),
        _section("vllm", "The engine `vllm`", 180, "beside", "vllm", (*OURS, "vllm")),
        _section("ranks", "Two ranks", 60, "whole", "ranks", gpus=2),
        _section("two-gpus", "vLLM on two GPUs", 120, "beside", "several", (*OURS, "vllm"), gpus=2),
    )
}
