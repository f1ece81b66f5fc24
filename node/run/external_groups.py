"""What an update takes from outside, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from node.config.config import Config
from node.config.kinds import SELECTIONS
from node.learner.batches import TrainingGroup
from node.learner.external_filters import FILTERS
from node.learner.update_stats import UpdateStats
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup
from node.rollout.intake import Intake, Limits
from node.rollout.replay import Revived, SuccessPool
from node.run.outcome import earned
from node.run.rules import Rules
from protocol.manifest import Manifest
from swarm.common.counters import Counters
from swarm.groups import Candidate, GroupKey, PooledGroup, informative
from swarm.member import Experience
from swarm.mixture.mixture import Mixture
from swarm.mixture.peer_advantage import OWN, Earned, PeersLead

Left = tuple[PooledGroup, TrainingGroup]
"""An external group, and what is learned of it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """External groups of one update, marked as used.

    Attributes:
        training: what is learned of each.
        own: own groups beside them, as they are trained on.
        lent: external groups of earlier updates that own ones have an answer from.
        proven: authors with standing when they were chosen.
        wanted: how many there was room for when they were chosen.
        lead: how far peers were ahead then; None where nothing told.
        emptied: groups that were chosen and of which nothing was left to learn from.
    """

    groups: tuple[PooledGroup, ...]
    training: Sequence[TrainingGroup]
    own: Sequence[TrainingGroup]
    lent: Sequence[GroupKey]
    proven: frozenset[bytes]
    wanted: int
    lead: float | None = None
    emptied: tuple[PooledGroup, ...] = ()


class ExternalGroups:
    """Takes groups from the pool, and remembers of their authors what updates made of them.

    Args:
        experience: its accounts say whose groups have proved useful, and are told what each update
            makes of them.
        intake: cuts external groups to size.
        successes: right answers for own groups that failed wholly; left out, there are none.
        spared: J, own groups that external ones spare; what the pool lacks is generated.
    """

    def __init__(
        self,
        experience: Experience,
        mixture: Mixture,
        intake: Intake,
        counters: Counters,
        *,
        successes: SuccessPool | None = None,
        spared: int = 0,
    ) -> None:
        self._pool = experience.pool
        self._accounts = experience.accounts
        self._mixture = mixture
        self._intake = intake
        self._counters = counters
        self._successes = successes or SuccessPool(0, counters)
        self._spared = spared

    def missing(self) -> int:
        """Own groups that external ones could spare, and do not."""
        if not self._spared:
            return 0
        return self._spared - self._mixture.spared(self._pool.fresh(), self._accounts.proven())

    def take(self, number: int, written: Sequence[OwnGroup], own: Sequence[OwnGroup]) -> Taken:
        """Choose groups for round ``number`` and mark them used, durably, before anything learns.

        Args:
            written: this node's groups of the round.
            own: those of them that the update has.
        """
        self._intake.observe(written)
        proven = self._accounts.proven()
        revived = self._revived(written, own, proven)
        teaching = sum(informative(group.rewards) for group in revived.training)
        self._mixture.observe([*map(_own, written), *map(_admitted, self._pool.arrived())], proven)
        # Now: the update itself may change what there is room for.
        wanted = self._mixture.wanted(teaching)
        chosen = self._mixture.choose(
            self._pool.fresh(), number, teaching, len(own), proven, self._accounts.tried()
        )
        left, emptied = self._left(self._pool.consume(chosen, number))
        # Where the intake left less than was chosen, shares are of less.
        kept = self._within(left, revived, proven)
        for pooled, training in kept:
            self._successes.observe(training, pooled.key)
        return Taken(
            tuple(pooled for pooled, _ in kept),
            [training for _, training in kept],
            revived.training,
            revived.lent,
            proven,
            wanted,
            self._mixture.lead,
            tuple(emptied),
        )

    def _left(self, consumed: Sequence[PooledGroup]) -> tuple[list[Left], list[PooledGroup]]:
        """What is to be learned of groups, and those of which nothing is."""
        left, emptied = list[Left](), list[PooledGroup]()
        for pooled in consumed:
            training = self._intake.take(pooled)
            if training is None:
                self._accounts.prove([(pooled.author, 0.0)])
                emptied.append(pooled)
            else:
                left.append((pooled, training))
        return left, emptied

    def _revived(
        self, written: Sequence[OwnGroup], own: Sequence[OwnGroup], proven: Set[bytes]
    ) -> Revived:
        """The own groups of an update, with right answers where all of theirs are wrong."""
        for each in written:
            self._successes.observe(each.training)
        return self._successes.revive(
            [each.training for each in own],
            lambda authors: self._mixture.within(authors, len(own), proven),
        )

    def _within(self, left: Sequence[Left], revived: Revived, proven: Set[bytes]) -> list[Left]:
        """Those that shares allow beside what their authors lent."""
        lent = [key.author for key in revived.lent]
        authors = [*lent, *(pooled.author for pooled, _ in left)]
        kept = self._mixture.within(authors, len(revived.training), proven)
        if over := len(authors) - len(kept):
            self._counters.add("external_over_share", over)
        return [left[place - len(lent)] for place in kept if place >= len(lent)]

    def credit(
        self, own: Sequence[OwnGroup], taken: Taken, update: UpdateStats, version: int
    ) -> None:
        """Note what came of an update: the standing of its authors, the lineage.

        Args:
            version: of the policy after it.
        """
        credited = earned(taken.groups, update.useful)
        self._accounts.prove(credited)
        if useless := sum(not useful for _, useful in credited):
            self._counters.add("external_useless", useless)
        keys = [g.key for g in own], [*(g.key for g in taken.groups), *taken.lent]
        self._pool.record_update(version, *keys)


def _own(written: OwnGroup) -> Earned:
    group = written.group
    return Earned(OWN, group.env, group.level, written.training.rewards)


def _admitted(candidate: Candidate) -> Earned:
    return Earned(candidate.key.author, candidate.env, candidate.level, candidate.rewards)


def open_intake(
    config: Config, policy: Policy, manifest: Manifest, secret: bytes, counters: Counters
) -> Intake:
    """The intake that a node's configuration and its swarm ask for."""
    limits = Limits(
        config.engine.group_size,
        config.engine.max_new_tokens,
        [name for name in FILTERS if name in config.mixture.refuse],
    )
    extracts = {spec.name: spec.extract for spec in manifest.catalogue}
    return Intake(policy, limits, extracts, secret, counters)


def open_mixture(config: Config, rules: Rules, lead: PeersLead) -> Mixture:
    """The mixture that a node's configuration asks for."""
    section = config.mixture
    rule = SELECTIONS.load(section.select)
    options = SELECTIONS.options(section.select, section.select_options)
    return Mixture(section, config.node.seed, lead, rule, options, discard=rules.discard)
