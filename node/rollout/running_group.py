"""One own group on its way from a task to an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from node.engines.engine import Sample
from node.playing.open_trajectory import OpenTrajectory
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup
from node.rollout.own_task import OwnTask
from node.rollout.unfinished_groups import UnfinishedGroup, UnfinishedTurn
from protocol.rollout import Finish


@dataclass(slots=True)
class RunningGroup:
    """What is known of a group so far.

    Attributes:
        ticket: its name.
        size: completions to be written.
        kept: what an earlier run has left of them, by number.
        prompt_ids: empty until the prompt is known.
        completions: none until :meth:`open`.
        scored: the whole group, once it has its verdict.
    """

    ticket: int
    task: OwnTask
    size: int
    kept: dict[int, tuple[UnfinishedTurn, ...]] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completions: list[OpenTrajectory] = field(default_factory=list)
    scored: OwnGroup | None = None

    @classmethod
    def of(cls, kept: UnfinishedGroup, size: int) -> RunningGroup:
        """A group of an earlier run, whose ``size`` may have been another."""
        return cls(kept.ticket, kept.task, size, kept.completions)

    @property
    def complete(self) -> bool:
        """Whether every completion has ended."""
        return bool(self.completions) and all(each.over for each in self.completions)

    def open(self, policy: Policy, cap: int) -> None:
        """Have its completions as far as they were written.

        Args:
            cap: most tokens of a turn; one that an earlier run began may have more.
        """
        self.completions = [
            OpenTrajectory(self.task.ref, [*self.prompt_ids]) for _ in range(self.size)
        ]
        for number, each in enumerate(self.completions):
            _restore(each, self.kept.get(number, ()), policy, cap)


def _restore(
    each: OpenTrajectory, kept: Sequence[UnfinishedTurn], policy: Policy, cap: int
) -> None:
    for turn in kept:
        tokens, finish = turn.tokens, turn.finish
        if finish is None and len(tokens.ids) >= cap:
            finish = Finish.LENGTH
        if finish is None:
            each.begun = tokens
        else:
            each.add(Sample(tokens, finish, policy.decode(tokens.ids)))
        if turn.observation is not None:
            each.read(turn.observation, policy.encode_observation(turn.observation))
