"""What is left of an engine that has every completion as soon as it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence

from node.engines.engine import Sample, Sampling, Trajectory
from protocol.rollout import Tokens


class WritesAtOnce(ABC):
    """Single trajectories by :meth:`generate`, where nothing is gained by keeping what was read."""

    _done: defaultdict[int, list[tuple[int, Sample]]] | None = None

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`."""

    def submit(self, trajectories: Sequence[Trajectory], sampling: Sampling) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        if self._done is None:
            self._done = defaultdict(list)
        written = self.generate([each.prompt for each in trajectories], 1, sampling)
        for each, (sample,) in zip(trajectories, written, strict=True):
            self._done[each.stream].append((each.key, sample))

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`; never waits."""
        return self._done.pop(stream, []) if self._done else []

    def forget(self, keys: Sequence[int]) -> None:  # noqa: B027 - there is nothing to do
        """Nothing is kept."""

    def nudge(self) -> None:  # noqa: B027 - there is nothing to do
        """Nobody waits."""

    def halt(self) -> list[tuple[int, Tokens]]:
        """Nothing is ever unfinished."""
        return []
