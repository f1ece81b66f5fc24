"""What stands in for a node's judge and learner, where only the way between nodes is looked at."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.manifest import EnvSpec
from protocol.rollout import Completion, Finish, Group, Segment, Writer
from swarm.groups import GroupKey, Origin, TaskRef
from swarm.member import Experience
from swarm.verification import Answer, Judge, Verdict

FAMILY = EnvSpec("parity", "plugin", "1", ("{}",), "{question}", "text")
ORIGIN = Origin(1, "none", b"\x01" * 32, 1.0, 16)
ANSWERS = ("a right answer", "a wrong answer.")
"""Of every group: one of even and one of odd length, so that it is informative."""
OF_USE = 1.0


def reward(text: str) -> float:
    """1 for a text of even length, else 0."""
    return float(len(text) % 2 == 0)


class JudgeStandIn(Judge):
    """Rewards texts of even length, without a verifier and at once."""

    def judge(
        self, task: TaskRef, texts: Sequence[Answer], *, seconds: float | None = None
    ) -> Verdict:
        rewards = tuple(reward(text) for text in texts if isinstance(text, str))
        return Verdict(f"{task.env} {task.seed}", rewards, seconds=0.0)


class LearnerStandIn:
    """Writes groups and uses those of others, without a policy.

    Every group that it takes is said to have been of full use.

    Args:
        groups: that it writes in an epoch.
    """

    def __init__(self, experience: Experience, groups: int, limit: int) -> None:
        self._experience = experience
        self._groups = groups
        self._limit = limit
        self._step = 0

    def write(self, epoch: int) -> int:
        """Put an epoch's groups into the outbox; how many they are."""
        indexes = self._experience.journal.next_indexes(epoch, self._groups, self._limit)
        self._experience.outbox.put([_group(epoch, index) for index in indexes], ORIGIN)
        return len(indexes)

    def learn(self) -> list[GroupKey]:
        """Use everything that the pool holds in one update; what that was."""
        self._step += 1
        used = self._experience.pool.consume(self._experience.pool.fresh(), self._step)
        keys = [pooled.key for pooled in used]
        self._experience.pool.record_update(self._step, (), keys)
        self._experience.accounts.prove((key.author, OF_USE) for key in keys)
        return keys


def _group(epoch: int, index: int) -> Group:
    completions = tuple(
        Completion((Segment(Writer.POLICY, text),), reward(text), Finish.STOP) for text in ANSWERS
    )
    return Group(FAMILY.name, 0, epoch, index, completions)
