"""An engine whose answers teach nothing: of the right form, and written without any model."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from experiments.recipe.corpus import noise_answer
from node.engines.engine import RolloutEngine, Sample, Sampling, SamplingRequest
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens

CONSTANT = "unknown"


class UselessEngine(RolloutEngine):
    """Answers every prompt alike, or at random, as one who is certain.

    Whatever a learner makes of the policy changes nothing in it.

    Args:
        policy: whose tokenizer spells the answers; its weights are never asked.
        kind: always :data:`CONSTANT`, or one to four random letters and digits.
        seed: of the random ones.
    """

    def __init__(self, policy: Policy, kind: Literal["constant", "random"], seed: int) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self._done: defaultdict[int, list[tuple[int, Sample]]] = defaultdict(list)
        self._write: Callable[[], str] = (
            (lambda: CONSTANT) if kind == "constant" else (lambda: noise_answer(self._random))
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`."""
        return [[self._sample(self._write()) for _ in range(n)] for _ in prompts]

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        written = self.generate([each.prompt for each in trajectories], 1, sampling)
        for each, (sample,) in zip(trajectories, written, strict=True):
            self._done[each.stream].append((each.key, sample))

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        return self._done.pop(stream, [])

    def forget(self, keys: Sequence[int]) -> None:
        """Do nothing: no cache is kept."""

    def nudge(self) -> None:
        """Do nothing: :meth:`poll` never waits."""

    def halt(self) -> list[tuple[int, Tokens]]:
        return []

    def update(self, policy: Policy) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._policy = policy

    def state_dict(self) -> dict[str, Any]:
        """See :class:`node.engines.engine.RolloutEngine`."""
        return {"random": self._random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._random.setstate(state["random"])

    def _sample(self, text: str) -> Sample:
        ids = tuple(self._policy.encode_completion(text, stopped=True))
        versions = (self._policy.version,) * len(ids)
        tokens = Tokens(ids, (0.0,) * len(ids), versions)
        return Sample(tokens, Finish.STOP, text)
