"""Data-parallel rollout engine: one engine for each share of a machine's GPUs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from node.engines.engine import RolloutEngine, Sample, Sampling, SamplingRequest
from node.policy.policy import Policy
from protocol.rollout import Tokens

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

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        count = len(self._engines)
        shares = [prompts[start::count] for start in range(count)]
        with ThreadPoolExecutor(count) as threads:
            work = [e.generate for e in self._engines]
            done = list(threads.map(lambda call, share: call(share, n, sampling), work, shares))
        return [done[number % count][number // count] for number in range(len(prompts))]

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        keys = [*self._where, *(each.key for each in trajectories)]
        if len(set(keys)) < len(keys):
            raise ValueError("there is a trajectory with one of these keys already")
        load = Counter(self._where.values())
        places: dict[tuple[int, ...], int] = {}
        chosen: dict[int, int] = {}
        for each in trajectories:
            self._policy.check_prompt(each.prompt)
            place = self._homes.get(each.key, places.get(each.prompt))
            if place is None:
                place = min(range(len(self._engines)), key=lambda n: load[n])
            chosen[each.key] = places[each.prompt] = place
            load[place] += 1
        self._where |= chosen
        self._homes |= {each.key: chosen[each.key] for each in trajectories if each.lasts}
        for number, engine in enumerate(self._engines):
            engine.submit([t for t in trajectories if chosen[t.key] == number], sampling)

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        deadline = time.monotonic() + seconds
        while True:
            finished = [each for engine in self._engines for each in engine.poll(0.0, stream)]
            left = deadline - time.monotonic()
            if finished or left <= 0 or self._nudged.wait(min(LOOK_SECONDS, left)):
                break
        self._nudged.clear()
        for key, _ in finished:
            del self._where[key]
        return finished

    def forget(self, keys: Sequence[int]) -> None:
        homes = {key: self._homes.pop(key) for key in keys if key in self._homes}
        for number, engine in enumerate(self._engines):
            engine.forget([key for key, home in homes.items() if home == number])

    def nudge(self) -> None:
        self._nudged.set()

    def home(self, key: int) -> int:
        return self._where[key]

    def halt(self) -> list[tuple[int, Tokens]]:
        left = dict(each for engine in self._engines for each in engine.halt())
        ordered = [(key, left[key]) for key in self._where if key in left]
        for key in left:
            del self._where[key]
        return ordered

    def update(self, policy: Policy) -> None:
        self._policy = policy
        for engine in self._engines:
            engine.update(policy)

    def rest(self) -> None:
        for engine in self._engines:
            engine.rest()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
