"""Right answers that are kept, for when a later group of the same question fails wholly.

Such a group teaches nothing: all its rewards are 0. With one answer among it that was right before,
it does (DART, arXiv:2509.23866). Tasks seldom come back, but questions do, in data sets and small
games; so answers are kept by their prompts.

What is kept lies in memory alone. A node that starts again begins without any, and an update after
a restart may differ from what it would have been.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from node.engines.engine import Sampling
from node.evaluation.evaluator import SOLVED
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.policy.policy import Policy
from node.tasks.scorer import Scorer, buildable
from node.trajectories.player import Player
from node.trajectories.trajectory import Script
from protocol.rollout import Completion, Writer
from swarm.common.counters import Counters
from swarm.groups import GroupKey, PooledGroup, TaskRef
from swarm.verification import JudgeRefused

MOST_TOKENS = 1 << 20
"""Of all that is kept, prompts included: some hundred MB. The questions that were asked longest ago
are forgotten first."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Success:
    """A right answer.

    Attributes:
        source: the external group that it is from; None of an own one.
    """

    completion: TrainingCompletion
    reward: float
    source: GroupKey | None


@dataclass(frozen=True, slots=True)
class Revived:
    """Own groups as they are trained on.

    Attributes:
        training: in their order; in some an answer was replaced by a kept one.
        lent: the external groups that some of these are from.
    """

    training: tuple[TrainingGroup, ...]
    lent: tuple[GroupKey, ...]


class SuccessPool:
    """Keeps right answers by question, and puts one into an own group that failed wholly.

    Args:
        most: answers kept of a question; 0: nothing is kept, and no group changed.
        counters: ``successes_replayed`` counts groups that were given one.
    """

    def __init__(self, most: int, counters: Counters) -> None:
        self._most = most
        self._counters = counters
        self._kept: OrderedDict[Ids, dict[Ids, Success]] = OrderedDict()
        self._tokens = 0

    def observe(self, group: TrainingGroup, source: GroupKey | None = None) -> None:
        """Keep a group's right answers, each text once, the newest of a question.

        Args:
            source: names the group where it is another node's.
        """
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            if self._most and reward >= SOLVED:
                self._keep(group.prompt_ids, Success(completion, reward, source))
        while self._tokens > MOST_TOKENS:
            prompt, answers = self._kept.popitem(last=False)
            self._tokens -= len(prompt) + sum(map(len, answers))

    def revive(
        self, groups: Sequence[TrainingGroup], within: Callable[[list[bytes]], Collection[int]]
    ) -> Revived:
        """Let a kept answer take the place of the last one in every group that failed wholly.

        Answers to one question take turns.

        Args:
            within: the places of those external authors, of several, who may have a group in this
                update.
        """
        found = [None if any(group.rewards) else self._next(group.prompt_ids) for group in groups]
        borrowed = [n for n, each in enumerate(found) if each and each.source]
        authors = [each.source.author for each in found if each and each.source]
        allowed = {borrowed[place] for place in within(authors)} if authors else set()
        training, lent = list(groups), []
        for number, success in enumerate(found):
            if success is None or (success.source and number not in allowed):
                continue
            training[number] = _with(groups[number], success)
            self._counters.add("successes_replayed")
            if success.source:
                lent.append(success.source)
        return Revived(tuple(training), tuple(lent))

    def _keep(self, prompt: Ids, success: Success) -> None:
        if prompt not in self._kept:
            self._kept[prompt] = {}
            self._tokens += len(prompt)
        self._kept.move_to_end(prompt)
        answers, ids = self._kept[prompt], success.completion.ids
        if answers.pop(ids, None) is None:
            self._tokens += len(ids)
        answers[ids] = success
        if len(answers) > self._most:
            oldest = next(iter(answers))
            del answers[oldest]
            self._tokens -= len(oldest)

    def _next(self, prompt: Ids) -> Success | None:
        """Whose turn it is of the answers to a question; None of none."""
        answers = self._kept.get(prompt)
        if not answers:
            return None
        self._kept.move_to_end(prompt)
        ids = next(iter(answers))
        answers[ids] = success = answers.pop(ids)
        return success


def _with(group: TrainingGroup, success: Success) -> TrainingGroup:
    """The group with a success in place of its last completion."""
    replayed = replace(success.completion, versions=None, replayed=True)
    return replace(
        group,
        completions=(*group.completions[:-1], replayed),
        rewards=(*group.rewards[:-1], success.reward),
    )


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
    :class:`node.trajectories.trajectory.Script`.

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
