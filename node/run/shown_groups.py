"""Which groups of a round people get to look at, and what is said of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from node.learner.advantages import Advantage
from node.monitor.groups import MOST_ANSWERS, ShownCompletion, ShownGroup, ShownTokens
from node.monitor.refusal_words import in_words
from node.monitor.transcript import transcript
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup
from node.run.outcome import Outcome
from protocol.rollout import Completion, Finish, Tokens
from swarm.admission import RefusedGroup
from swarm.groups import PooledGroup, informative

AT_ONCE = 8
"""Own groups of a round, and external ones, at most."""
SAME = (
    "All {count} answers have the reward {reward:g}: none is better, so there is nothing to learn."
)
NO_STEP = "The update made no step."
REFUSED_STEP = "The update's step was refused: its loss or gradient was not finite."
IMPLAUSIBLE = "This policy would hardly have written its better answers, so they do not count yet."
EMPTIED = (
    "Nothing was left to learn: its better answers are of a kind that is not imitated, or it is "
    "longer than this policy reads."
)


class ShownGroups:
    """Remembers the latest round, and shows its groups when asked.

    Args:
        policy: tells what token ids spell.
        advantage: that the learner goes by.
        refused: groups that were refused since it was last asked.
    """

    def __init__(
        self, policy: Policy, advantage: Advantage, refused: Callable[[], Sequence[RefusedGroup]]
    ) -> None:
        self._policy = policy
        self._advantage = advantage
        self._refused = refused
        self._pieces: dict[int, str] = {}
        self._latest: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        """Remember a round, in place of the one before."""
        self._latest = outcome

    def take(self) -> list[ShownGroup]:
        """Groups of the latest round that were not shown, those that teach first, and of all that
        was refused since."""
        outcome, self._latest = self._latest, None
        if outcome is None:
            return []
        number, now = outcome.round, time.time()
        told = outcome.update.entropies
        entropies = told if len(told) == len(outcome.own) else [()] * len(outcome.own)
        own = sorted(
            zip(outcome.own, entropies, strict=True), key=lambda each: not each[0].informative
        )[:AT_ONCE]
        useful = outcome.update.useful
        external = [
            self._external(pooled, outcome, now, useful[place] if place < len(useful) else None)
            for place, pooled in enumerate(outcome.external[:AT_ONCE])
        ]
        emptied = [
            self._pooled(pooled, number, now, in_update=False, reason=EMPTIED)
            for pooled in outcome.emptied[:AT_ONCE]
        ]
        refused = [self._refused_group(each, number) for each in self._refused()]
        return [*(self._own(*each, outcome, now) for each in own), *external, *emptied, *refused]

    def _own(
        self, own: OwnGroup, entropies: Sequence[Sequence[float]], outcome: Outcome, now: float
    ) -> ShownGroup:
        rewards = own.training.rewards
        reason = _nothing(rewards, outcome)
        return ShownGroup(
            round=outcome.round,
            time=now,
            origin="own",
            env=own.group.env,
            level=own.group.level,
            author=None,
            prompt=own.prompt,
            in_update=True,
            reason=reason,
            completions=self._completions(own.group.completions, rewards, entropies, own=True),
        )

    def _external(
        self, pooled: PooledGroup, outcome: Outcome, now: float, useful: float | None
    ) -> ShownGroup:
        reason = _nothing(pooled.group.rewards, outcome)
        if reason is None and useful == 0:
            reason = IMPLAUSIBLE
        return self._pooled(pooled, outcome.round, now, in_update=True, reason=reason)

    def _pooled(
        self, pooled: PooledGroup, number: int, now: float, *, in_update: bool, reason: str | None
    ) -> ShownGroup:
        group = pooled.group
        same = pooled.encoding == self._policy.encoding
        return ShownGroup(
            round=number,
            time=now,
            origin="external",
            env=group.env,
            level=group.level,
            author=pooled.author.hex(),
            prompt=pooled.prompt,
            in_update=in_update,
            reason=reason,
            completions=self._completions(group.completions, group.rewards, (), own=same),
        )

    def _refused_group(self, refused: RefusedGroup, number: int) -> ShownGroup:
        group = refused.group
        return ShownGroup(
            round=number,
            time=refused.at,
            origin="refused",
            env=group.env,
            level=group.level,
            author=refused.author.hex(),
            prompt=refused.prompt,
            in_update=False,
            reason=in_words(refused.reason),
            completions=[
                ShownCompletion(
                    text=transcript(done.segments),
                    reward=refused.rewards[place] if place < len(refused.rewards) else None,
                    advantage=None,
                    cut=done.finish is Finish.LENGTH,
                )
                for place, done in enumerate(group.completions[:MOST_ANSWERS])
            ],
        )

    def _completions(
        self,
        completions: Sequence[Completion],
        rewards: Sequence[float],
        entropies: Sequence[Sequence[float]],
        *,
        own: bool,
    ) -> list[ShownCompletion]:
        """Args:
        entropies: of each, of every token of it; none where that is not known.
        own: their tokens are of this policy's vocabulary.
        """
        told = entropies or ((),) * len(completions)
        columns = zip(completions, rewards, self._advantage(rewards), told, strict=True)
        return [
            ShownCompletion(
                text=transcript(done.segments),
                reward=reward,
                advantage=advantage,
                cut=done.finish is Finish.LENGTH,
                tokens=self._tokens(done, entropy) if own else ShownTokens(),
            )
            for done, reward, advantage, entropy in list(columns)[:MOST_ANSWERS]
        ]

    def _tokens(self, done: Completion, entropy: Sequence[float]) -> ShownTokens:
        """What an answer is made of, where it is one piece and its ids spell it."""
        tokens = done.segments[0].tokens if len(done.segments) == 1 else None
        stopped = done.finish is Finish.STOP
        if tokens is None or not self._policy.spells(tokens.ids, done.text, stopped):
            return ShownTokens()
        return ShownTokens(self._spelled(tokens), tokens.logprobs, tokens.versions, entropy)

    def _spelled(self, tokens: Tokens) -> list[str]:
        for each in set(tokens.ids) - self._pieces.keys():
            self._pieces[each] = str(self._policy.tokenizer.decode([each]))
        return [self._pieces[each] for each in tokens.ids]


def _nothing(rewards: Sequence[float], outcome: Outcome) -> str | None:
    """Why a group of an update taught nothing, where that is to be seen of its rewards."""
    if not informative(rewards):
        return SAME.format(count=len(rewards), reward=rewards[0])
    if outcome.update.skipped:
        return REFUSED_STEP if outcome.update.refused else NO_STEP
    return None
