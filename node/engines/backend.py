"""What samples tokens inside an engine's process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.rollout import Finish


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a back-end is opened with.

    Attributes:
        kind: of the engine, a name of :data:`node.config.registry.ENGINES`.
        folder: of the snapshot (see :mod:`node.engines.weight_snapshot`).
        dtype: of the weights and the cache.
        device: torch's name of it.
        stop_ids: tokens that end a completion.
        context_length: prompt and completion together, tokens.
        seed: of the draws.
        max_rows: completions written side by side.
        options: for the back-end of this kind alone.
    """

    kind: str
    folder: str
    dtype: str
    device: str
    stop_ids: tuple[int, ...]
    context_length: int
    seed: int
    max_rows: int
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """Some text to go on with.

    Attributes:
        number: names it.
        ids: the prompt and what is written already.
        room: most tokens to add; at least one.
        temperature, greedy: as in :class:`node.engines.engine.Sampling`.
        lasting: names a trajectory that may go on behind this job's end, as another job; None where
            nothing follows.
    """

    number: int
    ids: tuple[int, ...]
    room: int
    temperature: float
    greedy: bool
    lasting: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a job was added since the last report.

    Attributes:
        ids: sampled tokens, the one that ended it included.
        logprobs: one a token, under the distribution it was drawn from.
        version: of the policy, the same for all of them.
        finish: None while it goes on.
    """

    number: int
    ids: list[int]
    logprobs: list[float]
    version: int
    finish: Finish | None = None


class Backend(Protocol):
    """Writes jobs step by step. What a call returns is reported once."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs on, the first ones first."""

    def step(self) -> list[Written]:
        """Add a token to what is being written; what is worth reporting now.

        A job that has ended is reported at once, others now and then.
        """

    def update(self) -> list[Written]:
        """Go on under the snapshot's weights, at once or some steps later; what was written under
        the earlier ones.

        What is being written is read anew under the new weights, so that every token is drawn
        from, and its log-prob is of, what the new weights make of all that stands before it.

        Raises:
            SnapshotError: the snapshot cannot be used.
        """

    def halt(self) -> list[Written]:
        """Forget all jobs; what was not reported of them."""

    def forget(self, lasting: Sequence[int]) -> None:
        """Keep nothing of trajectories of these names: no job of theirs follows."""

    def rest(self) -> None:
        """Give back what memory it can until the next job; only called when there is none."""
