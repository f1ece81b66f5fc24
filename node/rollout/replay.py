"""Replay of correct answers in failed groups, and of peers' best trajectories.

A group whose rewards are all 0 teaches nothing; an earlier correct answer to the same question
makes it informative (DART, arXiv:2509.23866). Tasks rarely recur, but questions do, so answers are
kept by prompt, in memory only: an update after a restart may differ.
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
from protocol.rollout import Writer
from swarm.common.counters import Counters
from swarm.groups import GroupKey, PooledGroup, TaskRef
from swarm.verification import JudgeRefused

MOST_TOKENS = 1 << 20  # some hundred MB of answers and prompts; drops least recently used

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Success:
    """A correct answer, and the peer's group that it is from, if any."""

    completion: TrainingCompletion
    reward: float
    source: GroupKey | None


@dataclass(frozen=True, slots=True)
class Revived:
    """Local groups as they are trained on, and peers' groups that lent answers."""

    training: tuple[TrainingGroup, ...]
    lent: tuple[GroupKey, ...]


class SuccessPool:
    """Store of up to ``most`` correct answers per question, for failed local groups.

    ``successes_replayed`` counts groups that got one. 0 keeps none and changes no group.
    """

    def __init__(self, most: int, counters: Counters) -> None:
        self._most = most
        self._counters = counters
        self._kept: OrderedDict[Ids, dict[Ids, Success]] = OrderedDict()
        self._tokens = 0

    def observe(self, group: TrainingGroup, source: GroupKey | None = None) -> None:
        """Keep a group's correct answers, each text once, the newest of a question."""
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            if self._most and reward >= SOLVED:
                self._keep(group.prompt_ids, Success(completion, reward, source))
        while self._tokens > MOST_TOKENS:
            prompt, answers = self._kept.popitem(last=False)
            self._tokens -= len(prompt) + sum(map(len, answers))

    def revive(
        self, groups: Sequence[TrainingGroup], within: Callable[[list[bytes]], Collection[int]]
    ) -> Revived:
        """Replace the last answer of every group with all rewards 0 by a kept answer.

        Answers to one question take turns. Given peer authors, ``within`` returns the positions of
        those that may have a group in this update.
        """
        found = [None if any(group.rewards) else self._next(group.prompt_ids) for group in groups]
        borrowed = [n for n, each in enumerate(found) if each and each.source]
        authors = [each.source.author for each in found if each and each.source]
        allowed = {borrowed[place] for place in within(authors)} if authors else set()
        training, lent = list(groups), []
        for number, success in enumerate(found):
            if success is None or (success.source and number not in allowed):
                continue
            group, answer = (
                groups[number],
                replace(success.completion, versions=None, replayed=True),
            )
            completions = (*group.completions[:-1], answer)
            rewards = (*group.rewards[:-1], success.reward)
            training[number] = replace(group, completions=completions, rewards=rewards)
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
        answers = self._kept.get(prompt)
        if not answers:
            return None
        self._kept.move_to_end(prompt)
        ids = next(iter(answers))
        answers[ids] = success = answers.pop(ids)
        return success


MOST_SCRIPTS = 256  # Kept in memory; the oldest are dropped.


@dataclass(frozen=True, slots=True)
class SemiOnlineLimits:
    """Maximum groups per update (0 is none) and turns of a script in a trajectory."""

    groups: int = 0
    patches: int = 1


@dataclass(eq=False)
class SemiOnline:
    """Repeated play of peers' tasks along their best trajectory.

    See :class:`node.trajectories.trajectory.Script`. These groups are not shared: peers wrote parts
    of them. Counts ``scripted_groups`` (trained on) and ``scripted_groups_lost{reason}``.
    """

    limits: SemiOnlineLimits
    player: Player
    policy: Policy
    scorer: Scorer
    sampling: Sampling
    group_size: int
    counters: Counters

    def __post_init__(self) -> None:
        self._scripts: deque[tuple[TaskRef, Script]] = deque(maxlen=MOST_SCRIPTS)

    def observe(self, groups: Sequence[PooledGroup]) -> None:
        """Keep each group's best trajectory, if it is better than another."""
        for pooled in groups if self.limits.groups else ():
            group = pooled.group
            if group.env not in self.scorer.environments:
                continue
            best = max(group.completions, key=lambda done: done.reward)
            if best.reward > min(done.reward for done in group.completions):
                ref = TaskRef.shared(
                    pooled.author, group.env, group.level, group.epoch, group.index
                )
                turns = [each for each in best.segments if each.writer is Writer.POLICY]
                actions = tuple(each.text for each in turns)
                self._scripts.append((ref, Script(actions, self.limits.patches)))

    def generate(self) -> list[TrainingGroup]:
        """Generate groups along the newest scripts; each script is used once."""
        count = min(self.limits.groups, len(self._scripts))
        scripts = dict(self._scripts.pop() for _ in range(count))
        asked = self._questions(list(scripts)) if scripts else []
        if not asked:
            return []
        tasks, prompts = zip(*asked, strict=True)
        written = self.player.play(tasks, prompts, self.group_size, self.sampling, scripts)
        groups = []
        for prompt_ids, played in zip(prompts, written, strict=True):
            if lost := next((each.lost for each in played if each.lost), None):
                self._lost(lost)
                continue
            self.counters.add("scripted_groups")
            completions = tuple(each.training() for each in played)
            rewards = tuple(each.reward or 0.0 for each in played)
            groups.append(TrainingGroup(tuple(prompt_ids), completions, rewards, own=True))
        return groups

    def _questions(self, tasks: Sequence[TaskRef]) -> list[tuple[TaskRef, list[int]]]:
        built = buildable(self.scorer, tasks, lambda _, refused: self._lost(refused))
        asked = [
            (task, self.policy.encode_prompt(prompt))
            for task, prompt in zip(tasks, built, strict=True)
            if prompt is not None
        ]
        fit = [each for each in asked if 0 < len(each[1]) < self.policy.context_length]
        if left_out := len(asked) - len(fit):
            self.counters.add("scripted_groups_lost", left_out, reason="no_room")
        return fit

    def _lost(self, refused: JudgeRefused) -> None:
        self.counters.add("scripted_groups_lost", reason=refused.reason)
