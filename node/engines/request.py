"""A completion on its way, as its owner knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.engines.backend import Job, Written
from node.engines.engine import Sample, Sampling, Trajectory
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens


@dataclass(slots=True)
class Pending:
    """A trajectory, how it is sampled, and what was added to it.

    Attributes:
        streamed: whether it is polled for.
        cap: most tokens of the whole completion.
        added: by the engine, in order.
    """

    trajectory: Trajectory
    sampling: Sampling
    streamed: bool
    cap: int
    added: list[Written] = field(default_factory=list)

    @classmethod
    def of(
        cls, trajectory: Trajectory, sampling: Sampling, policy: Policy, *, streamed: bool
    ) -> Pending:
        """Begin where the trajectory was begun.

        Raises:
            ValueError: its prompt leaves no room for a completion.
        """
        policy.check_prompt(trajectory.prompt)
        room = policy.context_length - len(trajectory.prompt)
        return cls(trajectory, sampling, streamed, min(sampling.max_new_tokens, room))

    @property
    def tokens(self) -> Tokens:
        """All that it has so far."""
        begun, added = self.trajectory.tokens, self.added
        return Tokens(
            (*begun.ids, *(token for each in added for token in each.ids)),
            (*begun.logprobs, *(value for each in added for value in each.logprobs)),
            (*begun.versions, *(each.version for each in added for _ in each.ids)),
        )

    def ended(self, policy: Policy) -> Finish | None:
        """How it has ended, where nothing is left to write."""
        ids = self.tokens.ids
        if ids and ids[-1] in policy.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(ids) >= self.cap else None

    def sample(self, policy: Policy, finish: Finish) -> Sample:
        """The completion it has become."""
        tokens = self.tokens
        return Sample(tokens, finish, policy.decode(tokens.ids))

    def job(self, number: int) -> Job:
        """The job that has it written under a number."""
        written = self.tokens.ids
        return Job(
            number,
            (*self.trajectory.prompt, *written),
            self.cap - len(written),
            self.sampling.temperature,
            self.sampling.greedy,
            self.trajectory.key if self.trajectory.lasts else None,
        )
