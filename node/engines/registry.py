"""Open the rollout engine that a configuration names, on its devices."""

from __future__ import annotations

import logging
import os

import torch

from node.config.config import Config
from node.engines.engine import RolloutEngine
from node.engines.kinds import kind_of
from node.engines.process.child import Starter
from node.engines.process.data_parallel import DataParallelEngine
from node.engines.process.engine import EngineProcess
from node.errors import ConfigError
from node.policy.policy import Policy
from swarm.common.counters import Counters
from swarm.common.util import counted

log = logging.getLogger(__name__)


def open_engine(config: Config, policy: Policy, counters: Counters) -> RolloutEngine:
    """Open an engine whose owner waits for completions."""
    embedded = kind_of(config).embedded(policy, config.node.seed)
    return embedded or open_streaming_engine(config, policy, counters, torch.get_num_threads())


def open_streaming_engine(
    config: Config, policy: Policy, counters: Counters, threads: int
) -> RolloutEngine:
    """Open an engine in separate processes, which samples while its owner works.

    Raises ConfigError: a required library is missing, or there are too few GPUs.
    """
    kind = kind_of(config)
    kind.check()
    if config.engine.sleep_mode and policy.device.type == "cpu":
        log.warning(
            "engine.sleep_mode: the engine stands still, but keeps its memory without a GPU"
        )
    engines = []
    for number, variables in enumerate(devices(config, policy)):
        starter = Starter(
            config.engine.kind,
            config.node.seed + number,
            threads,
            config.engine.timeout,
            options=kind.settings(config.engine),
            variables=variables,
            as_checkpoint=kind.as_checkpoint,
        )
        engines.append(EngineProcess(policy, starter, counters))
    return engines[0] if len(engines) == 1 else DataParallelEngine(engines, policy)


def devices(config: Config, policy: Policy) -> list[dict[str, str]]:
    """Return, per engine, the environment that selects its GPUs, or raise ConfigError.

    A single one-GPU engine shares the policy's GPU; otherwise the first GPUs are assigned in order.
    """
    count, width = config.engine.data_parallel_size, config.engine.tensor_parallel_size
    if policy.device.type != "cuda" or not kind_of(config).several_gpus or width > count == 1:
        return [{}] * count
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]
    if count == 1:
        return [{"CUDA_VISIBLE_DEVICES": seen[policy.device.index or 0]}]
    if len(seen) < count * width:
        raise ConfigError(
            "engine.data_parallel_size",
            count,
            f"With engine.tensor_parallel_size = {width} it takes "
            f"{counted(count * width, 'GPU')}, and there are {len(seen)}.",
        )
    starts = range(0, count * width, width)
    return [{"CUDA_VISIBLE_DEVICES": ",".join(seen[n : n + width])} for n in starts]
