"""Replay of correct answers in failed groups, and of peers' best trajectories.

A group whose rewards are all 0 teaches nothing. An earlier correct answer to the same question
makes it informative (DART, arXiv:2509.23866). Tasks rarely recur, but questions do, so answers are
kept by prompt. All is in memory only, so an update after a restart may differ.
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
"""All answers and prompts, some hundred MB; least recently used questions are dropped first."""

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
        answers = self._kept.get(prompt)
        if not answers:
            return None
        self._kept.move_to_end(prompt)
        ids = next(iter(answers))
        answers[ids] = success = answers.pop(ids)
        return success


def _with(group: TrainingGroup, success: Success) -> TrainingGroup:
    replayed = replace(success.completion, versions=None, replayed=True)
    return replace(
        group,
        completions=(*group.completions[:-1], replayed),
        rewards=(*group.rewards[:-1], success.reward),
    )


MOST_SCRIPTS = 256  # Kept in memory; the oldest are dropped.


@dataclass(frozen=True, slots=True)
class SemiOnlineLimits:
    """Maximum groups per update (0 is none) and turns of a script in a trajectory."""

    groups: int = 0
    patches: int = 1


class SemiOnline:
    """Repeated play of peers' tasks along their best trajectory.

    See :class:`node.trajectories.trajectory.Script`. These groups are not shared, because their
    tasks are not this node's and peers wrote parts of them. Counts ``scripted_groups`` (trained on)
    and ``scripted_groups_lost{reason}``.
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
        """Keep each group's best trajectory, if it is better than another."""
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
        """Generate groups along the newest scripts; each script is used once."""
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
