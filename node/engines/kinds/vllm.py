"""The engine that samples with vLLM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from node.config.sections import EngineSection
from node.engines.kind import EngineKind
from node.engines.vllm.version import check_vllm

if TYPE_CHECKING:
    from node.engines.backend import Backend, BackendSettings

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
        """See :func:`node.engines.vllm.version.check_vllm`."""
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
        from node.engines.vllm.backend import VllmBackend

        return VllmBackend.open(settings)
