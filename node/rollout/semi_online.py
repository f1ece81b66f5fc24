"""Own trajectories along those with which others have succeeded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from node.engines.engine import Sampling
from node.learner.batches import TrainingGroup
from node.playing.player import Player
from node.playing.script import Script
from node.policy.policy import Policy
from node.tasks.scorer import Scorer, buildable
from protocol.rollout import Completion, Writer
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef
from swarm.verification import JudgeRefused

MOST_SCRIPTS = 256
"""Remembered; of more the oldest are forgotten. None of them outlives the process."""


@dataclass(frozen=True, slots=True)
class SemiOnlineLimits:
    """What an update gets.

    Attributes:
        groups: of it, at most; 0 is none at all.
        patches: most turns of a script in one trajectory.
    """

    groups: int = 0
    patches: int = 1


class SemiOnline:
    """Plays tasks of others once more, held to their best trajectory: see
    :class:`node.playing.script.Script`.

    Nobody is told of these groups: their tasks are not this node's, and parts of them were written
    by others.

    Args:
        player: writes and plays.
        scorer: builds the questions.
        sampling: as of own groups.
        group_size: trajectories of a task.
        counters: ``scripted_groups``, groups that were learned from, and
            ``scripted_groups_lost{reason}``.
    """

    def __init__(
        self,
        limits: SemiOnlineLimits,
        player: Player,
        policy: Policy,
        scorer: Scorer,
        sampling: Sampling,
        group_size: int,
        counters: Counters,
    ) -> None:
        self._limits = limits
        self._player = player
        self._policy = policy
        self._scorer = scorer
        self._sampling = sampling
        self._group_size = group_size
        self._counters = counters
        self._scripts: deque[tuple[TaskRef, Script]] = deque(maxlen=MOST_SCRIPTS)

    def observe(self, groups: Sequence[PooledGroup]) -> None:
        """Remember the best trajectory of each, where it is better than another of its group."""
        for pooled in groups if self._limits.groups else ():
            group = pooled.group
            if group.env not in self._scorer.environments:
                continue
            best = max(group.completions, key=lambda done: done.reward)
            if best.reward > min(done.reward for done in group.completions):
                ref = TaskRef.shared(
                    pooled.author, group.env, group.level, group.epoch, group.index
                )
                self._scripts.append((ref, Script(_actions(best), self._limits.patches)))

    def generate(self) -> list[TrainingGroup]:
        """Groups along the newest scripts, each of which is used once."""
        count = min(self._limits.groups, len(self._scripts))
        scripts = dict(self._scripts.pop() for _ in range(count))
        asked = self._questions(list(scripts)) if scripts else []
        if not asked:
            return []
        tasks, prompts = zip(*asked, strict=True)
        written = self._player.play(tasks, prompts, self._group_size, self._sampling, scripts)
        groups = []
        for prompt_ids, played in zip(prompts, written, strict=True):
            if lost := next((each.lost for each in played if each.lost), None):
                self._lost(lost)
                continue
            self._counters.add("scripted_groups")
            completions = tuple(each.training() for each in played)
            rewards = tuple(each.reward or 0.0 for each in played)
            groups.append(TrainingGroup(tuple(prompt_ids), completions, rewards, own=True))
        return groups

    def _questions(self, tasks: Sequence[TaskRef]) -> list[tuple[TaskRef, list[int]]]:
        """The tasks that can be built here and whose prompts fit, with those as token ids."""
        built = buildable(self._scorer, tasks, lambda _, refused: self._lost(refused))
        asked = [
            (task, self._policy.encode_prompt(prompt))
            for task, prompt in zip(tasks, built, strict=True)
            if prompt is not None
        ]
        fit = [each for each in asked if 0 < len(each[1]) < self._policy.context_length]
        if left_out := len(asked) - len(fit):
            self._counters.add("scripted_groups_lost", left_out, reason="no_room")
        return fit

    def _lost(self, refused: JudgeRefused) -> None:
        self._counters.add("scripted_groups_lost", reason=refused.reason)


def _actions(done: Completion) -> tuple[str, ...]:
    return tuple(each.text for each in done.segments if each.writer is Writer.POLICY)
