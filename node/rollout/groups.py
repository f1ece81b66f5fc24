"""From rollouts to what the learner trains on, for own groups and for external ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.trajectories.trajectory import Played
from protocol.rollout import Completion, Finish, Group, Writer
from swarm.groups import PooledGroup, TaskRef
from swarm.verification import Verdict


@dataclass(frozen=True, slots=True)
class OwnTask:
    """One task to roll out: the family and level are chosen, the seed follows from the rest.

    Attributes:
        ref: what it is rebuilt from.
        epoch: in which its index was taken.
        index: number within the epoch, used once.
    """

    ref: TaskRef
    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """A group this node wrote, as it is shared and as it is trained on.

    Attributes:
        prompt: the question, before any chat template.
    """

    prompt: str
    group: Group
    training: TrainingGroup

    @property
    def key(self) -> tuple[int, int]:
        """``(epoch, index)`` of its task."""
        return self.group.epoch, self.group.index

    @property
    def informative(self) -> bool:
        """Whether rewards differ; otherwise every advantage is zero and nothing is learned."""
        return len(set(self.training.rewards)) > 1

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(sum(c.trained) for c in self.training.completions)


def own_group(
    task: OwnTask, prompt_ids: Sequence[int], written: Sequence[Played], verdict: Verdict
) -> OwnGroup:
    """Join the completions of one task and what was found of them."""
    rewards = verdict.rewards
    completions = tuple(
        Completion(each.segments, reward, each.finish)
        for each, reward in zip(written, rewards, strict=True)
    )
    training = TrainingGroup(
        prompt_ids=tuple(prompt_ids),
        completions=tuple(each.training() for each in written),
        rewards=tuple(rewards),
        own=True,
    )
    group = Group(task.ref.env, task.ref.level, task.epoch, task.index, completions)
    return OwnGroup(verdict.prompt, group, training)


def external_group(policy: Policy, pooled: PooledGroup, kept: Sequence[int]) -> TrainingGroup:
    """Re-encode for ``policy`` those completions of an external group whose numbers are ``kept``.

    Token ids and behaviour log-probs are taken over where the author encodes exactly as this
    policy does and the ids decode to the text that was scored; otherwise the text is encoded anew
    and the behaviour stays unknown.
    """
    prompt_ids = policy.encode_prompt(pooled.prompt)
    same = pooled.encoding == policy.encoding
    done = [pooled.group.completions[number] for number in kept]
    completions = tuple(_external_completion(policy, each, same=same) for each in done)
    rewards = tuple(each.reward for each in done)
    return TrainingGroup(tuple(prompt_ids), completions, rewards, own=False)


def _external_completion(
    policy: Policy, completion: Completion, *, same: bool
) -> TrainingCompletion:
    ids: list[int] = []
    mask: list[bool] = []
    behaviour: list[float] = []
    known = True
    last = len(completion.segments) - 1
    for position, segment in enumerate(completion.segments):
        ours = segment.writer is Writer.POLICY
        # A turn that another one follows ended by itself.
        stopped = position < last or completion.finish is Finish.STOP
        tokens = segment.tokens if same and ours else None
        if tokens is not None and policy.spells(tokens.ids, segment.text, stopped):
            part: Sequence[int] = tokens.ids
            behaviour.extend(tokens.logprobs)
        else:
            part = (
                policy.encode_completion(segment.text, stopped=stopped)
                if ours
                else policy.encode_observation(segment.text)
            )
            behaviour.extend([0.0] * len(part))
            known = known and not ours
        ids.extend(part)
        mask.extend([ours] * len(part))
    return TrainingCompletion(tuple(ids), tuple(mask), tuple(behaviour) if known else None)


T = TypeVar("T")


class GroupSource(Protocol):
    """Where a round's own groups come from: the schedule is the source's.

    :class:`node.rollout.generator.Generator` writes them when asked and stands still while the
    policy learns; :class:`node.rollout.async_generator.OverlappingGenerator` never does.
    """

    def generate(self, count: int, watch: Stopwatch) -> list[OwnGroup]:
        """Own groups of the next update, about ``count`` of them, none handed out before."""
        ...

    def newest(self) -> Sequence[TrainingGroup]:
        """Completions that were written last, the newest at the end, in an update or not.

        May be called from work that is done :meth:`beside`.
        """
        ...

    def beside(self, work: Callable[[], T]) -> T:
        """Do ``work``, an update, and whatever generation goes on meanwhile."""
        ...
