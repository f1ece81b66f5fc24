"""The interface of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from node.policy import Policy
from protocol.rollout import Finish


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    The whole vocabulary is sampled from: top-k and top-p would cut the support that importance
    weights need.

    Attributes:
        temperature: divides the logits; above 0.
        max_new_tokens: length cap of a completion, its end-of-sequence token included.
        greedy: take the most probable token; log-probs are still those at ``temperature``.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 64
    greedy: bool = False

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature = {self.temperature} must be above 0; for the most probable tokens "
                "set greedy"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens = {self.max_new_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled completion.

    Attributes:
        ids: in the policy's vocabulary, the end-of-sequence token included where it was sampled.
        logprobs: natural log of each id's probability under the distribution sampled from.
        versions: the policy's version that each id was sampled under.
        finish: stopped by itself, or cut at the length cap.
        text: ``ids`` decoded, special tokens left out.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish
    text: str


class RolloutEngine(Protocol):
    """Draws completions from a policy."""

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """``n`` completions of each prompt (token ids), in the order of ``prompts``.

        A completion ends early where prompt and completion fill the policy's context.

        Raises:
            ValueError: an empty prompt, or one that leaves no room for a completion.
        """

    def update(self, policy: Policy) -> None:
        """Sample from these weights from now on."""

    def close(self) -> None:
        """Release memory and processes; the engine is not usable afterwards."""
