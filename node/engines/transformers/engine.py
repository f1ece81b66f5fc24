"""The embedded rollout engine: a lean decoding loop over the policy's own model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event
from typing import Any

import torch

from node.engines.backend import Written
from node.engines.engine import Sample, Sampling, Trajectory
from node.engines.transformers.decoding import Decoding
from node.engines.transformers.polled_batch import PolledBatch
from node.policy.device import draws_on
from node.policy.policy import Policy
from protocol.rollout import Tokens

log = logging.getLogger(__name__)

MAX_ROWS = 256


class TransformersEngine:
    """Samples with any ``transformers`` causal model, on the device that its weights are on.

    A prompt is read once for all of its completions, and rows that have finished leave the batch.
    The learner's in-place updates are seen by the next call. Adapters are merged for as long as
    it lasts.

    Args:
        policy: whose weights are sampled from.
        seed: of the engine's own random numbers.
        max_rows: completions decoded side by side, unless one prompt alone asks for more.
        eight_bits: see :class:`node.engines.transformers.decoding.Decoding`.
    """

    def __init__(
        self, policy: Policy, *, seed: int, max_rows: int = MAX_ROWS, eight_bits: bool = False
    ) -> None:
        self._policy = policy
        self._eight_bits = eight_bits
        self._max_rows = max_rows
        self._random = torch.Generator(draws_on(policy.device))
        self._random.manual_seed(seed)
        self._polled: PolledBatch | None = None
        self._nudged = Event()

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`."""
        for prompt in prompts:
            self._policy.check_prompt(prompt)
        at_once = max(1, self._max_rows // n)
        random = self._chance(sampling)
        samples: list[list[Sample]] = []
        for start in range(0, len(prompts), at_once):
            samples += self._generate(prompts[start : start + at_once], n, sampling, random)
        return samples

    def submit(self, trajectories: Sequence[Trajectory], sampling: Sampling) -> None:
        """See :class:`node.engines.engine.RolloutEngine`; they are written by :meth:`poll`."""
        if self._polled is None:
            merged, random = self._policy.merged(), self._chance(sampling)
            self._polled = PolledBatch(merged, random, self._max_rows, eight_bits=self._eight_bits)
        self._polled.submit(trajectories, sampling)

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`; what it writes it writes here."""
        if self._polled is None:
            self._nudged.wait(seconds)
            self._nudged.clear()
            return []
        finished = self._polled.poll(seconds, stream, self._nudged)
        self._let_go()
        return finished

    def forget(self, keys: Sequence[int]) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        if self._polled:
            self._polled.forget(keys)
            self._let_go()

    def nudge(self) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._nudged.set()

    def halt(self) -> list[tuple[int, Tokens]]:
        """See :class:`node.engines.engine.RolloutEngine`."""
        return self._polled.halt() if self._polled else []

    def update(self, policy: Policy) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._policy = policy
        if self._polled:
            self._polled.update(policy.merged())

    def rest(self) -> None:
        """Nothing is held where no trajectory is written or lasts."""

    def close(self) -> None:
        """Nothing is held that needs releasing."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the random numbers."""
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        if "random" not in state:
            return
        if len(state["random"]) != len(self._random.get_state()):
            log.warning(
                "this run's answers were drawn on another kind of device (policy.device): the "
                "random numbers that they are drawn with begin anew"
            )
            return
        self._random.set_state(state["random"])

    def _chance(self, sampling: Sampling) -> torch.Generator:
        if sampling.seed is None:
            return self._random
        return torch.Generator(draws_on(self._policy.device)).manual_seed(sampling.seed)

    def _let_go(self) -> None:
        """Hold no merged weights and no cache once there is nothing to write."""
        if self._polled and self._polled.idle:
            self._polled = None

    @torch.inference_mode()
    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        random: torch.Generator,
    ) -> list[list[Sample]]:
        room = [self._policy.context_length - len(prompt) for prompt in prompts for _ in range(n)]
        caps = [min(sampling.max_new_tokens, each) for each in room]
        decoding = Decoding(self._policy.merged(), sampling, random, eight_bits=self._eight_bits)
        written = decoding.join(prompts, [n] * len(prompts), caps)
        while decoding.left:
            written += decoding.step()
        rows: list[list[Written]] = [[] for _ in caps]
        for each in written:
            rows[each.number].append(each)
        samples = [self._sample(row) for row in rows]
        return [samples[start : start + n] for start in range(0, len(samples), n)]

    def _sample(self, written: Sequence[Written]) -> Sample:
        ids = tuple(token for each in written for token in each.ids)
        logprobs = tuple(value for each in written for value in each.logprobs)
        finish = written[-1].finish
        assert finish is not None
        tokens = Tokens(ids, logprobs, (self._policy.version,) * len(ids))
        return Sample(tokens, finish, self._policy.decode(ids))
