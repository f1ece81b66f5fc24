"""One own group on its way from a task to an update."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.engines.engine import Sample
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup
from node.rollout.own_task import OwnTask
from node.rollout.unfinished_groups import Place, UnfinishedCompletion, UnfinishedGroup
from protocol.rollout import Finish, Tokens


@dataclass(slots=True)
class RunningGroup:
    """What is known of a group so far.

    Attributes:
        ticket: its name.
        size: completions to be written.
        prompt_ids: empty until the prompt is known.
        samples: finished completions by number.
        begun: what unfinished ones have, by number.
        scored: the whole group, once it has its verdict.
    """

    ticket: int
    task: OwnTask
    size: int
    prompt_ids: list[int] = field(default_factory=list)
    samples: dict[int, Sample] = field(default_factory=dict)
    begun: dict[int, Tokens] = field(default_factory=dict)
    scored: OwnGroup | None = None

    @classmethod
    def of(cls, kept: UnfinishedGroup, size: int, policy: Policy, cap: int) -> RunningGroup:
        """A group of an earlier run, whose ``size`` or length ``cap`` may have been others."""
        group = cls(kept.ticket, kept.task, size)
        for number, completion in kept.completions.items():
            if number < size:
                group._add(number, completion, policy, cap)
        return group

    @property
    def complete(self) -> bool:
        """Whether every completion has finished."""
        return len(self.samples) == self.size

    def unfinished(self) -> list[tuple[Place, Tokens]]:
        """What is to be written or gone on with."""
        return [
            (Place(self.ticket, number), self.begun.get(number, Tokens()))
            for number in range(self.size)
            if number not in self.samples
        ]

    def _add(self, number: int, kept: UnfinishedCompletion, policy: Policy, cap: int) -> None:
        tokens, finish = kept.tokens, kept.finish
        if finish is None and len(tokens.ids) >= cap:
            finish = Finish.LENGTH
        if finish is None:
            self.begun[number] = tokens
        else:
            self.samples[number] = Sample(tokens, finish, policy.decode(tokens.ids))
