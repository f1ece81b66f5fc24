"""Local and peers' groups from rollout to training: conversion, limits, filters."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Protocol, TypeVar
from unicodedata import combining, normalize

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.off_policy import FILTERS, Answer, budget
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.trajectories.trajectory import Trajectory, TurnLimits
from protocol.profile import INVISIBLE
from protocol.rollout import Completion, Finish, Group, Writer
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef, informative
from swarm.verification import Scores


@dataclass(frozen=True, slots=True)
class LocalTask:
    """A task to roll out; its seed follows from author, family, level and index.

    ``index`` counts within a time slot (``epoch``) and is used once.
    """

    ref: TaskRef
    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """A local group in two forms: for sharing and for training.

    ``slow`` numbers the completions that took long to score or exceeded the verifier's limits.
    """

    prompt: str
    group: Group
    training: TrainingGroup
    slow: tuple[int, ...] = ()

    @property
    def shared(self) -> Group | None:
        """The group for peers without ``slow`` completions; None if fewer than two are left.

        Another node may score those in time, or not, and would take the claim for a lie.
        """
        members = tuple(c for n, c in enumerate(self.group.completions) if n not in self.slow)
        return replace(self.group, completions=members) if len(members) > 1 else None

    @property
    def key(self) -> tuple[int, int]:
        return self.group.epoch, self.group.index

    @property
    def informative(self) -> bool:
        """Whether rewards differ; otherwise every advantage is zero."""
        return informative(self.training.rewards)

    @property
    def tokens(self) -> int:
        return sum(sum(c.trained) for c in self.training.completions)


LocalGroups = Sequence[LocalGroup]


def local_group(
    task: LocalTask, prompt_ids: Sequence[int], trajectories: Sequence[Trajectory], scores: Scores
) -> LocalGroup:
    """Combine a task's completions and their verification result."""
    rewards = scores.rewards
    completions = tuple(
        t.completion(reward) for t, reward in zip(trajectories, rewards, strict=True)
    )
    inputs = tuple(t.training() for t in trajectories)
    training = TrainingGroup(tuple(prompt_ids), inputs, tuple(rewards), local=True)
    group = Group(task.ref.env, task.ref.level, task.epoch, task.index, completions)
    return LocalGroup(scores.prompt, group, training, tuple(scores.over))


def external_group(
    policy: Policy, pooled: PooledGroup, kept: Sequence[int]
) -> TrainingGroup | None:
    """Encode those completions of a peer's group for ``policy`` that are ``kept``.

    Returns None if the prompt has no token: nothing would predict the first one of a completion.
    Token ids and behavior log-probs are reused if the author encodes exactly like this policy and
    the ids decode to the scored text; otherwise the behavior is unknown.
    """
    prompt_ids = policy.encode_prompt(pooled.prompt)
    if not prompt_ids:
        return None
    same = pooled.encoding == policy.encoding
    originals = [pooled.group.completions[number] for number in kept]
    completions = tuple(_external_completion(policy, original, same=same) for original in originals)
    rewards = tuple(original.reward for original in originals)
    return TrainingGroup(tuple(prompt_ids), completions, rewards, local=False)


def _external_completion(
    policy: Policy, completion: Completion, *, same: bool
) -> TrainingCompletion:
    ids: list[int] = []
    mask: list[bool] = []
    behaviour: list[float] = []
    is_known = True
    last = len(completion.segments) - 1
    for position, segment in enumerate(completion.segments):
        ours = segment.writer is Writer.POLICY
        # A turn that another one follows ended with EOS.
        has_eos = position < last or completion.finish is Finish.STOP
        tokens = segment.tokens if same and ours else None
        if tokens is not None and policy.spells(tokens.ids, segment.text, has_eos):
            chunk: Sequence[int] = tokens.ids
            behaviour.extend(tokens.logprobs)
        else:
            text = segment.text
            chunk = (
                policy.encode_completion(text, has_eos) if ours else policy.encode_observation(text)
            )
            behaviour.extend([0.0] * len(chunk))
            is_known = is_known and not ours
        ids.extend(chunk)
        mask.extend([ours] * len(chunk))
    return TrainingCompletion(tuple(ids), tuple(mask), tuple(behaviour) if is_known else None)


def _bare(text: str) -> str:
    """Return a text without blanks, accents, case and other ways to write the same."""
    # One by one: to normalize a long run of accents takes quadratic time.
    letters = "".join(c for each in text for c in normalize("NFKD", each) if not combining(c))
    return "".join(INVISIBLE.sub("", letters).casefold().split())


T = TypeVar("T")


class GroupSource(Protocol):
    """Source of a round's local groups; it decides the schedule."""

    def generate(self, count: int, watch: Stopwatch) -> list[LocalGroup]:
        """Return about ``count`` new local groups for the next update."""

    def newest(self) -> Sequence[TrainingGroup]:
        """Return the latest completions, the newest last; callable in :meth:`beside`."""

    def beside(self, work: Callable[[], T]) -> T:
        """Do ``work``, an update, while any generation continues; by default none does."""
        return work()

    def close(self) -> None:
        """End any generation that continues between rounds; by default none does."""
        return


REMEMBERED_LENGTHS = 512  # Local completions of a task whose length is kept.
REMEMBERED_TEXTS = 8192


def turns_of(trained: Sequence[bool]) -> list[slice]:
    """Return the policy's turns in order: the runs of tokens that it sampled.

    An environment's answer has at least one token, so turns are never adjacent.
    """
    turns, start = [], 0
    for sampled, run in groupby(trained):
        end = start + sum(1 for _ in run)
        if sampled:
            turns.append(slice(start, end))
        start = end
    return turns


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of a peer's group: ``completions`` sampled, ``tokens`` of each, filters.

    ``read`` is the learner's limit, which counts observations, too; ``turns`` those of the engine.
    """

    completions: int
    tokens: int
    refuse: Collection[str] = ()
    read: int = sys.maxsize
    turns: TurnLimits = field(default_factory=TurnLimits)


@dataclass(eq=False)
class Intake:
    """Removal of what was not rewarded under this node's limits, or must not be imitated.

    A reward is that of the whole completion, so a part of it must not be trained with it. A
    completion leaves its group, whatever its reward, if this node would not have ended it there:
    the rest is a sample under the condition that both nodes' limits allow it, and its mean remains
    an unbiased baseline. That would not hold if only right completions left.

    ``secret`` is local, so no author can predict which completions are sampled.
    """

    policy: Policy
    limits: GroupLimits
    secret: bytes
    counters: Counters

    def __post_init__(self) -> None:
        self._lengths: defaultdict[tuple[str, int], deque[int]] = defaultdict(
            partial(deque, maxlen=REMEMBERED_LENGTHS)
        )
        self._texts: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._longest = max(map(len, self.policy.tokenizer.get_vocab()))

    def observe(self, groups: Sequence[LocalGroup]) -> None:
        """Record the lengths of local completions."""
        for group in groups:
            lengths = self._lengths[group.group.env, group.group.level]
            lengths.extend(sum(completion.trained) for completion in group.training.completions)

    def take(self, pooled: PooledGroup) -> TrainingGroup | None:
        """Return the group as it is trained on; None if nothing is left to learn."""
        completions = pooled.group.completions
        numbers = [n for n in self._sampled(pooled) if self._may_fit(completions[n])]
        encoded = external_group(self.policy, pooled, numbers)
        group = encoded and self._without_refused(encoded, pooled, numbers)
        if group is None or (informative(pooled.group.rewards) and not informative(group.rewards)):
            self.counters.add("external_nothing_left")
            return None
        return group

    def _sampled(self, pooled: PooledGroup) -> Sequence[int]:
        """Return the numbers of the completions to use, a sample if there are too many."""
        group = pooled.group
        count, limit = len(group.completions), self.limits.completions
        if count <= limit:
            return range(count)
        self.counters.add("external_completions_cut", count - limit)
        seed = b"%b/%b/%d/%d" % (self.secret, pooled.author, group.epoch, group.index)
        return sorted(random.Random(sha256(seed).digest()).sample(range(count), limit))

    def _may_fit(self, completion: Completion) -> bool:
        """Return whether the text can have few enough tokens.

        Encoding a text takes far longer than its verification, and training waits for it.
        """
        fits = len(completion.text) <= self._longest * self.limits.tokens
        if not fits:
            self.counters.add("external_refused", reason="too_long")
        return fits

    def _without_refused(
        self, training: TrainingGroup, pooled: PooledGroup, numbers: Sequence[int]
    ) -> TrainingGroup | None:
        """Return the group without refused completions; None if fewer than two are left.

        The filters apply only to what would be imitated: completions above the mean reward.
        """
        room = self.policy.context_length - len(training.prompt_ids)
        originals = [pooled.group.completions[number] for number in numbers]
        pairs = list(zip(originals, training.completions, strict=True))
        reasons = [
            self._limit_reason(original.finish, output, room) or self._lossy(original.text, output)
            for original, output in pairs
        ]
        rewards = training.rewards
        accepted = [rewards[index] for index, reason in enumerate(reasons) if reason is None]
        mean = sum(accepted) / max(1, len(accepted))
        for index, (original, output) in enumerate(pairs):
            if reasons[index] is None and rewards[index] > mean:
                reasons[index] = self._filter_reason(pooled, original.text, output)
        for reason in filter(None, reasons):
            self.counters.add("external_refused", reason=reason)
        indexes = [index for index, reason in enumerate(reasons) if reason is None]
        if len(indexes) < 2:
            return None
        return replace(
            training,
            completions=tuple(training.completions[index] for index in indexes),
            rewards=tuple(rewards[index] for index in indexes),
        )

    def _limit_reason(self, finish: Finish, output: TrainingCompletion, room: int) -> str | None:
        """Return why this node would not have ended the completion there, or would not read it."""
        limits, turns = self.limits, [len(output.ids[turn]) for turn in turns_of(output.trained)]
        generated = sum(turns)
        if not generated:
            return "empty"
        if generated > limits.tokens or len(output.ids) > min(limits.read, room):
            return "too_long"
        if finish is Finish.STOP:
            return None
        if len(turns) < 2:
            full = generated >= min(limits.tokens, room)
        else:
            full = turns[-1] >= limits.turns.turn_tokens or limits.turns.last(len(turns), generated)
        return None if full else "unfinished"

    def _lossy(self, text: str, output: TrainingCompletion) -> str | None:
        """Return a reason if the tokenizer cannot encode what was scored."""
        ids = [token for token, ours in zip(output.ids, output.trained, strict=True) if ours]
        written = self.policy.decode(ids)
        return None if written == text or _bare(written) == _bare(text) else "not_encodable"

    def _filter_reason(
        self, pooled: PooledGroup, text: str, output: TrainingCompletion
    ) -> str | None:
        ids = tuple(token for token, ours in zip(output.ids, output.trained, strict=True) if ours)
        lengths = self._lengths[pooled.group.env, pooled.group.level]
        answer = Answer(text, ids, budget(lengths), self._is_of_another(pooled, text))
        return next((name for name in self.limits.refuse if FILTERS[name](answer)), None)

    def _is_of_another(self, pooled: PooledGroup, text: str) -> bool:
        """Return whether another author sent the same text before, up to how it is written.

        Updates may use a copy first, so the time at which the groups were received decides.
        """
        digest, sent = sha256(_bare(text).encode()).digest(), (pooled.received, pooled.author)
        received, sender = self._texts.get(digest, sent)
        if pooled.received < received or digest not in self._texts:
            self._texts[digest] = sent
        while len(self._texts) > REMEMBERED_TEXTS:
            self._texts.popitem(last=False)
        return sender != pooled.author and received <= pooled.received
