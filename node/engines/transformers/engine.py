"""The embedded rollout engine: a lean decoding loop over the policy's own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from node.engines.backend import Written
from node.engines.engine import Sample, Sampling
from node.engines.transformers.decoding import Decoding
from node.policy.device import draws_on
from node.policy.policy import Policy
from protocol.rollout import Tokens

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
    """

    def __init__(self, policy: Policy, *, seed: int, max_rows: int = MAX_ROWS) -> None:
        self._policy = policy
        self._max_rows = max_rows
        self._random = torch.Generator(draws_on(policy.device))
        self._random.manual_seed(seed)

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`."""
        for prompt in prompts:
            self._policy.check_prompt(prompt)
        at_once = max(1, self._max_rows // n)
        random = self._random
        if sampling.seed is not None:
            random = torch.Generator(draws_on(self._policy.device)).manual_seed(sampling.seed)
        samples: list[list[Sample]] = []
        for start in range(0, len(prompts), at_once):
            samples += self._generate(prompts[start : start + at_once], n, sampling, random)
        return samples

    def update(self, policy: Policy) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._policy = policy

    def rest(self) -> None:
        """Nothing is held between two calls."""

    def close(self) -> None:
        """Nothing is held that needs releasing."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the random numbers."""
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        if "random" in state:
            self._random.set_state(state["random"])

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
        decoding = Decoding(self._policy.merged(), sampling, random)
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
