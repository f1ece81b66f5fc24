"""A completion on its way, as its owner knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node.engines.backend import Written
from node.engines.engine import Begun, Sample, Sampling, Trajectory
from node.policy.policy import Policy
from protocol.rollout import Finish


@dataclass(slots=True)
class Pending:
    """A trajectory, how it is sampled, and its tokens so far.

    Attributes:
        streamed: whether it is polled for.
        cap: most tokens of the whole completion.
    """

    trajectory: Trajectory
    sampling: Sampling
    streamed: bool
    cap: int
    ids: list[int]
    logprobs: list[float]
    versions: list[int]

    @classmethod
    def of(
        cls, trajectory: Trajectory, sampling: Sampling, policy: Policy, *, streamed: bool
    ) -> Pending:
        """Begin where the trajectory was begun.

        Raises:
            ValueError: its prompt leaves no room for a completion.
        """
        policy.check_prompt(trajectory.prompt)
        begun = trajectory.begun
        room = policy.context_length - len(trajectory.prompt)
        cap = min(sampling.max_new_tokens, room)
        return cls(
            trajectory,
            sampling,
            streamed,
            cap,
            list(begun.ids),
            list(begun.logprobs),
            list(begun.versions),
        )

    @property
    def length(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.trajectory.prompt) + len(self.ids)

    def add(self, written: Written) -> None:
        """Append what the engine has written."""
        self.ids += written.ids
        self.logprobs += written.logprobs
        self.versions += [written.version] * len(written.ids)

    def complete(self, policy: Policy) -> Finish | None:
        """How it has ended, where nothing is left to write."""
        if self.ids and self.ids[-1] in policy.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.ids) >= self.cap else None

    def begun(self) -> Begun:
        """What it has so far."""
        return Begun(tuple(self.ids), tuple(self.logprobs), tuple(self.versions))

    def sample(self, policy: Policy, finish: Finish) -> Sample:
        """The completion it has become."""
        begun = self.begun()
        return Sample(begun.ids, begun.logprobs, begun.versions, finish, policy.decode(begun.ids))

    def job(self, number: int) -> list[Any]:
        """The message that has it written (see :class:`node.engines.backend.Job`)."""
        sampling = self.sampling
        ids = [*self.trajectory.prompt, *self.ids]
        return [number, ids, self.cap - len(self.ids), sampling.temperature, sampling.greedy]
