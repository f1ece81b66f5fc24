"""Embedded rollout engine: decodes with the policy's own model in this process."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from threading import Event
from typing import Any

import torch

from node.engines.engine import (
    Pending,
    Prompts,
    RequestOutput,
    RolloutEngine,
    Sample,
    Sampling,
    SamplingRequest,
)
from node.engines.transformers.backend import ContinuousBatch
from node.engines.transformers.decoding import Decoders
from node.learner.micro_batching import ran_out
from node.policy.device import draws_on
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens

log = logging.getLogger(__name__)

MAX_ROWS = 256


class TransformersEngine(RolloutEngine):
    """A rollout engine on any ``transformers`` causal model, on the model's device.

    A prompt is prefilled once for all its completions, and finished rows leave the batch. The next
    call sees the learner's in-place updates. Adapters are merged while it samples. ``max_rows``
    limits the completions decoded together; if memory runs out, it is halved.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int,
        max_rows: int = MAX_ROWS,
        eight_bits: bool = False,
        graphs: bool = True,
    ) -> None:
        self._policy = policy
        self._decoders = Decoders(eight_bits=eight_bits, graphs=graphs)
        self._max_rows = max_rows
        self._random = torch.Generator(draws_on(policy.device))
        self._random.manual_seed(seed)
        self._batch: ContinuousBatch | None = None
        self._submitted = 0
        self._pending: dict[int, Pending] = {}
        self._finished: defaultdict[int, list[tuple[int, Sample]]] = defaultdict(list)
        self._lasting: set[int] = set()
        self._nudged = Event()

    def generate(self, prompts: Prompts, n: int, sampling: Sampling) -> list[list[Sample]]:
        for prompt in prompts:
            self._policy.check_prompt(prompt)
        generator = self._random_for(sampling)
        samples: list[list[Sample]] = []
        try:
            while len(samples) < len(prompts):
                start, count = len(samples), max(1, self._max_rows // n)
                samples += self._within(prompts[start : start + count], n, sampling, generator)
        finally:
            if self._batch is None:
                self._decoders.release(self._policy)
        return samples

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        if self._batch is None:
            merged, generator = self._decoders.merged(self._policy), self._random_for(sampling)
            self._batch = ContinuousBatch(merged, generator, self._max_rows, self._decoders)
        keys = {each.trajectory.key for each in self._pending.values()}
        if len(keys | {each.key for each in trajectories}) < len(keys) + len(trajectories):
            raise ValueError("there is a trajectory with one of these keys already")
        entries = [Pending.of(each, sampling, self._policy) for each in trajectories]
        requests = []
        for number, pending in enumerate(entries, self._submitted):
            self._pending[number] = pending
            if (finish := pending.ended(self._policy)) is not None:
                self._done(number, finish)
            else:
                requests.append(pending.request(number))
        self._submitted += len(entries)
        self._lasting |= {each.key for each in trajectories if each.lasts}
        self._batch.submit(requests)

    @torch.inference_mode()
    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        deadline = time.monotonic() + seconds
        while not (self._finished[stream] or self._nudged.is_set()):
            remaining = deadline - time.monotonic()
            if self._batch and self._batch.busy:
                self._take(self._batch.step())
            else:
                self._nudged.wait(max(0.0, remaining))
            if remaining <= 0:
                break
        self._nudged.clear()
        results = self._finished.pop(stream, [])
        self._release()
        return results

    def abort(self, keys: Sequence[int]) -> None:
        self._lasting.difference_update(keys)
        if self._batch:
            self._batch.abort(keys)
            self._release()

    def nudge(self) -> None:
        self._nudged.set()

    @torch.inference_mode()
    def pause(self) -> list[tuple[int, Tokens]]:
        if self._batch:
            self._take(self._batch.pause())
        unfinished = [(each.trajectory.key, each.tokens) for each in self._pending.values()]
        self._pending.clear()
        return unfinished

    def update(self, policy: Policy) -> None:
        self._policy = policy
        if self._batch:
            with torch.inference_mode():
                self._take(self._batch.cut())
            self._batch.policy = self._decoders.merged(policy)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "random" not in state:
            return
        if len(state["random"]) != len(self._random.get_state()):
            log.warning(
                "this run sampled on another type of device before (policy.device): the engine "
                "starts with a new random state"
            )
            return
        self._random.set_state(state["random"])

    def _random_for(self, sampling: Sampling) -> torch.Generator:
        if sampling.seed is None:
            return self._random
        return torch.Generator(draws_on(self._policy.device)).manual_seed(sampling.seed)

    def _take(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self._pending[output.number].added.append(output)
            if output.finish is not None:
                self._done(output.number, output.finish)

    def _done(self, number: int, finish: Finish) -> None:
        pending = self._pending.pop(number)
        result = (pending.trajectory.key, pending.sample(self._policy, finish))
        self._finished[pending.trajectory.stream].append(result)

    def _release(self) -> None:
        """Drop merged weights and cache once no trajectory is active, unpolled or lasting."""
        if not (self._pending or self._lasting or any(self._finished.values())):
            if self._batch:
                self._max_rows = self._batch.max_rows
            self._batch = None
            self._decoders.release(self._policy)

    def _within(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Sample]]:
        """Sample one batch; nothing if memory runs out."""
        if n > self._max_rows:  # of a single prompt
            group: list[Sample] = []
            while len(group) < n:
                count = min(self._max_rows, n - len(group))
                group += chain(*self._within(prompts, count, sampling, generator))
            return [group]
        samples: list[list[Sample]] = []
        if ran_out(lambda: samples.extend(self._generate(prompts, n, sampling, generator))):
            longest = max(map(len, prompts)) + sampling.max_new_tokens
            self._max_rows = self._decoders.fewer(self._policy, len(prompts) * n, longest)
        return samples

    @torch.inference_mode()
    def _generate(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Sample]]:
        policy, requests = self._policy, [SamplingRequest(0, tuple(each)) for each in prompts]
        rows = [Pending.of(each, sampling, policy) for each in requests for _ in range(n)]
        concurrent = self._batch is not None
        merged = policy.merged() if concurrent else self._decoders.merged(policy)
        decoding = self._decoders.open(merged, sampling, generator, beside=concurrent)
        outputs = decoding.join(prompts, [n] * len(prompts), [row.cap for row in rows])
        while decoding.left:
            outputs += decoding.step()
        finishes: dict[int, Finish] = {}
        for each in outputs:
            rows[each.number].added.append(each)
            if each.finish is not None:
                finishes[each.number] = each.finish
        samples = [row.sample(policy, finishes[number]) for number, row in enumerate(rows)]
        return [samples[start : start + n] for start in range(0, len(samples), n)]
