"""From rollouts to what the learner trains on, for own groups and for external ones."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import Protocol, TypeVar

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.off_policy import FILTERS, Answer, budget
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.trajectories.trajectory import Played
from protocol.manifest import Extract
from protocol.rollout import Completion, Finish, Group, Writer
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef, informative
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


REMEMBERED_LENGTHS = 512
"""Own completions of a task whose length is remembered."""
REMEMBERED_TEXTS = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may be at most, whatever its author sent.

    Attributes:
        completions: how many; of more, some are drawn.
        tokens: of each; longer ones are cut.
        refuse: names of :data:`node.learner.off_policy.FILTERS`.
    """

    completions: int
    tokens: int
    refuse: Collection[str] = ()


class Intake:
    """Cuts external groups to size and takes out what is not to be imitated.

    Args:
        extracts: how answers are found, by family.
        secret: local bytes; no author can know which of too many completions are drawn.
        counters: of what was cut and refused.
    """

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        extracts: Mapping[str, Extract],
        secret: bytes,
        counters: Counters,
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._extracts = extracts
        self._secret = secret
        self._counters = counters
        self._lengths: defaultdict[tuple[str, int], deque[int]] = defaultdict(
            partial(deque, maxlen=REMEMBERED_LENGTHS)
        )
        self._texts: OrderedDict[bytes, bytes] = OrderedDict()

    def observe(self, groups: Sequence[OwnGroup]) -> None:
        """Take in how long this node's own completions are."""
        for own in groups:
            lengths = self._lengths[own.group.env, own.group.level]
            lengths.extend(sum(done.trained) for done in own.training.completions)

    def take(self, pooled: PooledGroup) -> TrainingGroup | None:
        """What is trained on, rewards and completions; None where nothing is left to learn."""
        kept = self._drawn(pooled)
        whole = external_group(self._policy, pooled, kept)
        left = self._unrefused(whole, pooled, kept)
        if left is None or (informative(pooled.group.rewards) and not informative(left.rewards)):
            self._counters.add("external_nothing_left")
            return None
        cut = self._cut(left)
        longest = max(len(done.ids) for done in cut.completions)
        if len(cut.prompt_ids) + longest > self._policy.context_length:
            self._counters.add("external_too_long")
            return None
        return cut

    def _drawn(self, pooled: PooledGroup) -> Sequence[int]:
        """At most so many of the completions, drawn by a secret."""
        group = pooled.group
        count, most = len(group.completions), self._limits.completions
        if count <= most:
            return range(count)
        self._counters.add("external_completions_cut", count - most)
        name = b"%b/%b/%d/%d" % (self._secret, pooled.author, group.epoch, group.index)
        return sorted(random.Random(sha256(name).digest()).sample(range(count), most))

    def _unrefused(
        self, training: TrainingGroup, pooled: PooledGroup, numbers: Sequence[int]
    ) -> TrainingGroup | None:
        """Without the right answers that a filter refuses; None where no two are left."""
        mean = sum(training.rewards) / len(training.rewards)
        kept = []
        columns = zip(numbers, training.completions, training.rewards, strict=True)
        for place, (number, done, reward) in enumerate(columns):
            reason = self._reason(pooled, number, done) if reward > mean else None
            if reason is None:
                kept.append(place)
            else:
                self._counters.add("external_refused", reason=reason)
        if len(kept) < 2:
            return None
        return replace(
            training,
            completions=tuple(training.completions[place] for place in kept),
            rewards=tuple(training.rewards[place] for place in kept),
        )

    def _cut(self, training: TrainingGroup) -> TrainingGroup:
        """No completion longer than this node's own may be."""
        most = self._limits.tokens
        done = tuple(each.first(_until(each, most)) for each in training.completions)
        pairs = zip(training.completions, done, strict=True)
        if extra := sum(sum(whole.trained) - sum(cut.trained) for whole, cut in pairs):
            self._counters.add("external_tokens_cut", extra)
            return replace(training, completions=done)
        return training

    def _reason(self, pooled: PooledGroup, number: int, done: TrainingCompletion) -> str | None:
        """The first filter that refuses a completion."""
        group = pooled.group
        text = group.completions[number].text
        own = zip(done.ids, done.trained, strict=True)
        answer = Answer(
            text,
            tuple(token for token, ours in own if ours),
            self._extracts.get(group.env, "text"),
            budget(self._lengths[group.env, group.level]),
            self._elsewhere(pooled.author, text),
        )
        return next((name for name in self._limits.refuse if FILTERS[name](answer)), None)

    def _elsewhere(self, author: bytes, text: str) -> bool:
        """Whether another author sent this text first; the oldest texts are forgotten."""
        first = self._texts.setdefault(sha256(text.encode()).digest(), author)
        while len(self._texts) > REMEMBERED_TEXTS:
            self._texts.popitem(last=False)
        return first != author


def _until(done: TrainingCompletion, most: int) -> int:
    """Tokens up to where the policy has written ``most`` of them."""
    written = accumulate(done.trained)
    return next((n for n, own in enumerate(written) if own > most), len(done.ids))
