"""Open the rollout engine that a configuration names: one, or one per share of GPUs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from node.config.config import Config
from node.engines.engine import Prompts, RolloutEngine, Sample, Sampling, SamplingRequest
from node.engines.kinds import kind_of
from node.engines.process.child import Starter
from node.engines.process.engine import EngineProcess
from node.errors import ConfigError
from node.policy.policy import Policy
from protocol.rollout import Tokens
from swarm.common.counters import Counters
from swarm.common.util import counted

log = logging.getLogger(__name__)


def open_engine(config: Config, policy: Policy, counters: Counters) -> RolloutEngine:
    """Open an engine whose owner waits for completions."""
    embedded = kind_of(config).embedded(policy, config.node.seed)
    return embedded or open_streaming_engine(config, policy, counters)


def open_streaming_engine(config: Config, policy: Policy, counters: Counters) -> RolloutEngine:
    """Open an engine in separate processes, which samples while its owner works.

    Raises ConfigError: a required library is missing, or there are too few GPUs.
    """
    kind = kind_of(config)
    kind.check()
    if config.engine.sleep_mode and policy.device.type == "cpu":
        log.warning("engine.sleep_mode: without a GPU, the engine pauses but keeps its memory")
    engines = []
    for number, variables in enumerate(devices(config, policy)):
        starter = Starter(
            config.engine.backend,
            config.node.seed + number,
            torch.get_num_threads(),
            config.engine.timeout,
            options=kind.settings(config.engine),
            variables=variables,
            as_checkpoint=kind.as_checkpoint,
        )
        engines.append(EngineProcess(policy, starter, counters))
    return engines[0] if len(engines) == 1 else DataParallelEngine(engines, policy)


VISIBLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


def devices(config: Config, policy: Policy) -> list[dict[str, str]]:
    """Return, per engine, the environment that selects its GPUs, or raise ConfigError.

    A single one-GPU engine shares the policy's GPU; otherwise the first GPUs are assigned in order.
    """
    count, width = config.engine.data_parallel_size, config.engine.tensor_parallel_size
    if policy.device.type != "cuda" or not kind_of(config).several_gpus or width > count == 1:
        return [{}] * count
    # AMD's GPUs have both names, and vLLM refuses different values.
    names = VISIBLE if torch.version.hip else VISIBLE[:1]
    visible = next(filter(None, map(os.environ.get, reversed(names))), None)
    gpus = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    if count == 1:
        return [dict.fromkeys(names, gpus[policy.device.index or 0])]
    if len(gpus) < count * width:
        raise ConfigError(
            "engine.data_parallel_size",
            count,
            f"With engine.tensor_parallel_size = {width} it needs "
            f"{counted(count * width, 'GPU')}, and there are {len(gpus)}.",
        )
    starts = range(0, count * width, width)
    return [dict.fromkeys(names, ",".join(gpus[n : n + width])) for n in starts]


LOOK_SECONDS = 0.005


class DataParallelEngine(RolloutEngine):
    """A :class:`node.engines.engine.RolloutEngine` made of one or more others.

    Trajectories of one prompt that are submitted together go to the engine with the fewest
    trajectories, because they share computation. Later turns go to the engine of the first.
    """

    def __init__(self, engines: Sequence[RolloutEngine], policy: Policy) -> None:
        self._engines = tuple(engines)
        self._policy = policy
        self._where: dict[int, int] = {}
        self._homes: dict[int, int] = {}
        self._nudged = threading.Event()

    def generate(self, prompts: Prompts, n: int, sampling: Sampling) -> list[list[Sample]]:
        count = len(self._engines)
        shares = [prompts[start::count] for start in range(count)]
        with ThreadPoolExecutor(count) as pool:
            calls = [e.generate for e in self._engines]
            results = list(pool.map(lambda call, share: call(share, n, sampling), calls, shares))
        return [results[number % count][number // count] for number in range(len(prompts))]

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        keys = [*self._where, *(each.key for each in trajectories)]
        if len(set(keys)) < len(keys):
            raise ValueError("there is a trajectory with one of these keys already")
        load = Counter(self._where.values())
        by_prompt: dict[tuple[int, ...], int] = {}
        by_key: dict[int, int] = {}
        for each in trajectories:
            self._policy.check_prompt(each.prompt)
            index = self._homes.get(each.key, by_prompt.get(each.prompt))
            if index is None:
                index = min(range(len(self._engines)), key=lambda n: load[n])
            by_key[each.key] = by_prompt[each.prompt] = index
            load[index] += 1
        self._where |= by_key
        self._homes |= {each.key: by_key[each.key] for each in trajectories if each.lasts}
        for number, engine in enumerate(self._engines):
            engine.submit([t for t in trajectories if by_key[t.key] == number], sampling)

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        deadline = time.monotonic() + seconds
        while True:
            results = [each for engine in self._engines for each in engine.poll(0.0, stream)]
            remaining = deadline - time.monotonic()
            if results or remaining <= 0 or self._nudged.wait(min(LOOK_SECONDS, remaining)):
                break
        self._nudged.clear()
        for key, _ in results:
            del self._where[key]
        return results

    def abort(self, keys: Sequence[int]) -> None:
        homes = {key: self._homes.pop(key) for key in keys if key in self._homes}
        for number, engine in enumerate(self._engines):
            engine.abort([key for key, home in homes.items() if home == number])

    def nudge(self) -> None:
        self._nudged.set()

    def pause(self) -> list[tuple[int, Tokens]]:
        tokens = dict(each for engine in self._engines for each in engine.pause())
        unfinished = [(key, tokens[key]) for key in self._where if key in tokens]
        for key in tokens:
            del self._where[key]
        return unfinished

    def update(self, policy: Policy) -> None:
        self._policy = policy
        for engine in self._engines:
            engine.update(policy)

    def sleep(self) -> None:
        for engine in self._engines:
            engine.sleep()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
