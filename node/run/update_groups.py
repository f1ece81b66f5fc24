"""The local and peer groups of an update, the policy they train, and the outcome."""

from __future__ import annotations

import copy
import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel

from node.config.config import Config
from node.config.registry import CURRICULA, SELECTIONS
from node.distributed.ranks import Ranks
from node.distributed.sharded_learner import open_learner
from node.engines.engine import RolloutEngine
from node.engines.kinds import kind_of
from node.engines.registry import open_engine, open_streaming_engine
from node.learner.batches import TrainingGroup
from node.learner.off_policy import FILTERS
from node.learner.reference import Reference
from node.learner.update_stats import UpdateStats
from node.policy.device import give_back
from node.policy.model_files import PolicyError
from node.policy.policy import Policy
from node.rollout.generator import Generator
from node.rollout.groups import GroupLimits, GroupSource, Intake, LocalGroup, LocalGroups
from node.tasks.curriculum import EnvLevels, TaskSampler, chosen_levels
from node.tasks.scorer import Scorer
from node.threads import MemoryTrimmer
from node.trajectories.trajectory import TurnLimits
from protocol.rollout import Group
from swarm.common.counters import Counters
from swarm.groups import Candidate, Mean, Origin, PooledGroup, informative
from swarm.member import Experience
from swarm.mixture import Mixture
from swarm.peer_advantage import OWN, Earned, PeerAdvantage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round, before it becomes a record."""

    round: int
    policy_step: int
    local: tuple[LocalGroup, ...]
    external: tuple[PooledGroup, ...]
    update: UpdateStats
    evaluation: float | None
    seconds: dict[str, float]
    external_wanted: int  # peer groups that the update had room for
    trained: int = 0  # groups in the update, local and peer
    proven: frozenset[bytes] = frozenset()  # authors with reputation at the choice of groups
    peer_advantage: float | None = None  # see :class:`swarm.peer_advantage.PeerAdvantage`
    cost_local: float | None = None  # mean seconds per informative local group
    cost_external: float | None = None  # and per proven author's group in the update
    dropped: tuple[PooledGroup, ...] = ()  # chosen, but nothing was left to learn from

    @property
    def generated(self) -> int:
        return sum(group.tokens for group in self.local)

    @property
    def author_share(self) -> float | None:
        """Largest share of one peer author in the update; None without groups."""
        authors = Counter(pooled.author for pooled in self.external)
        return max(authors.values(), default=0) / self.trained if self.trained else None

    @property
    def useful(self) -> dict[str, float]:
        """Usefulness of the groups together, by peer author (public key in hex)."""
        totals: defaultdict[str, float] = defaultdict(float)
        for pooled, value in zip(self.external, self.update.useful, strict=False):
            totals[pooled.author.hex()] += value if math.isfinite(value) else 0.0
        return dict(totals)

    @property
    def unproven_share(self) -> float | None:
        """Share of unproven authors in the update; None without groups."""
        unproven = sum(pooled.author not in self.proven for pooled in self.external)
        return unproven / self.trained if self.trained else None


def earned(external: Sequence[PooledGroup], useful: Sequence[float]) -> list[tuple[bytes, float]]:
    """Return author and usefulness of each peer group that has an advantage."""
    return [
        (pooled.author, value)
        for pooled, value in zip(external, useful, strict=True)
        if pooled.candidate.informative
    ]


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a round; experiments switch single ones off, nodes use the defaults."""

    fill: bool = True  # local groups replace peer groups that the replay buffer lacks
    discard: bool = True  # groups of equal rewards are neither shared nor taken
    keep: int = 0  # maximum local groups to train on, informative ones only; 0 takes all
    costs: bool = True  # measured costs limit peer groups; without, equal seeds give equal rounds

    def shared(self, local: LocalGroups) -> list[Group]:
        groups = [group for each in local if (group := each.shared)]
        return [each for each in groups if informative(each.rewards) or not self.discard]

    def trained(self, local: LocalGroups) -> LocalGroups:
        return [each for each in local if each.informative][: self.keep] if self.keep else local


Usable = tuple[PooledGroup, TrainingGroup]  # a peer group, and what is learned from it


@dataclass(frozen=True, slots=True)
class Taken:
    """Peer groups of one update, marked as used."""

    groups: tuple[PooledGroup, ...]
    training: Sequence[TrainingGroup]  # what is learned from each
    proven: frozenset[bytes]  # authors with reputation when the groups were chosen
    wanted: int  # peer groups that there was room for then
    peer_advantage: float | None = None  # peer reward advantage then; None if unknown
    dropped: tuple[PooledGroup, ...] = ()  # chosen, but nothing was left to learn from


@dataclass(eq=False)
class ExternalGroups:
    """Peer groups from the replay buffer, and the credit that their authors get.

    ``experience`` keeps reputations and results; ``intake`` cuts groups to size. ``advantage`` is
    observed each round, and the rule of ``mixture`` may read it. ``replaced`` is J, local groups
    replaced. ``trusted`` returns the authors that the user trusts; banned ones do not
    count. Groups of banned authors are not used, nor of those that ``blocked`` returns. ``hidden``
    returns the envs whose rewards depend on hidden state. ``unread`` has those whose observations
    the policy cannot read.
    """

    experience: Experience
    mixture: Mixture
    advantage: PeerAdvantage
    intake: Intake
    counters: Counters
    replaced: int = 0
    trusted: Callable[[], Set[bytes]] = frozenset
    blocked: Callable[[], Set[bytes]] = frozenset
    hidden: Callable[[], Set[str]] = frozenset
    unread: Set[str] = frozenset()

    def __post_init__(self) -> None:
        self._pool, self._accounts = self.experience.pool, self.experience.accounts

    def missing(self) -> int:
        """Count the local groups that peer groups could replace, but do not.

        Lucky plays look like skill, so those of hidden state replace none.
        """
        if not self.replaced:
            return 0
        hidden = self.hidden()
        fresh = [each for each in self._fresh() if each.env not in hidden]
        return self.replaced - self.mixture.replaced(fresh, *self._authors())

    def _fresh(self) -> list[Candidate]:
        self._accounts.blocked = frozenset(self.blocked())
        ignored, fresh = self._accounts.ignored(), self._pool.fresh()
        return [c for c in fresh if c.key.author not in ignored and c.env not in self.unread]

    def _authors(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """Return the authors without the cap of the unproven, and those without any."""
        trusted = frozenset(a for a in self.trusted() if not self._accounts.banned(a))
        return self._accounts.proven() | trusted, trusted

    def take(self, number: int, generated: LocalGroups, local: LocalGroups) -> Taken:
        """Choose groups for round ``number``; mark them used durably before learning.

        ``local`` are the groups of ``generated`` that the update will learn from.
        """
        self.intake.observe(generated)
        proven, trusted = self._authors()
        informative_count = sum(each.informative for each in local)
        results = [
            *(Earned(OWN, g.group.env, g.group.level, g.training.rewards) for g in generated),
            *(Earned(g.key.author, g.env, g.level, g.rewards) for g in self._pool.arrived()),
        ]
        self.advantage.observe(results, proven)
        # Before the update, which may change what there is room for.
        wanted = self.mixture.wanted(informative_count)
        fresh, tried = self._fresh(), self._accounts.tried()
        chosen = self.mixture.choose(
            fresh, number, informative_count, len(local), proven, tried, trusted
        )
        usable, dropped = self._usable(self._pool.consume(chosen, number), proven, trusted)
        # If the intake dropped groups, author shares refer to the smaller update.
        authors = [pooled.author for pooled, _ in usable]
        indices = self.mixture.within(authors, len(local), proven, trusted)
        if excess := len(usable) - len(indices):
            self.counters.add("external_over_share", excess)
        selected = [usable[index] for index in indices]
        return Taken(
            groups=tuple(pooled for pooled, _ in selected),
            training=[training for _, training in selected],
            proven=proven,
            wanted=wanted,
            peer_advantage=self.advantage.value,
            dropped=tuple(dropped),
        )

    def _usable(
        self, consumed: Sequence[PooledGroup], proven: Set[bytes], trusted: Set[bytes]
    ) -> tuple[list[Usable], list[PooledGroup]]:
        usable, dropped, hidden = list[Usable](), list[PooledGroup](), self.hidden()
        # An original before its copies, which unproven authors send rather than proven ones.
        for pooled in sorted(consumed, key=lambda each: (each.author not in proven, each.received)):
            try:
                training = self.intake.take(pooled)
            except Exception:
                # A peer's group must not end the round: three failed rounds end the node.
                log.exception("a peer's group of %s cannot be used", pooled.group.env)
                self.counters.add("external_failed")
                dropped.append(pooled)
                continue
            if training is None:
                self._accounts.prove([(pooled.author, 0.0)])
                dropped.append(pooled)
            else:
                training = training.of_hidden_state() if pooled.group.env in hidden else training
                usable.append((pooled, replace(training, trusted=pooled.author in trusted)))
        places = {pooled.key: place for place, pooled in enumerate(consumed)}
        return sorted(usable, key=lambda each: places[each[0].key]), dropped

    def measure(
        self, seconds: Mapping[str, float], local: LocalGroups, taken: Taken, update: UpdateStats
    ) -> None:
        """Record what groups cost of a round's ``seconds``, and of its update by tokens read."""
        per_token = seconds["update"] / max(1, sum(update.tokens_read))
        own, read = update.tokens_read[: len(local)], update.tokens_read[len(local) :]
        sampling = sum(seconds.get(phase, 0.0) for phase in ("generate", "wait", "verify"))
        proven = [
            tokens * per_token
            for pooled, tokens in zip(taken.groups, read, strict=False)
            if pooled.author in taken.proven
        ]
        self.advantage.observe_costs(
            Mean(sum(each.informative for each in local), sampling + sum(own) * per_token),
            Mean(len(proven), sum(proven)),
        )

    def credit(self, local: LocalGroups, taken: Taken, update: UpdateStats, version: int) -> None:
        """Record an update's effects: author reputations, and lineage of its version."""
        earnings = earned(taken.groups, update.useful)
        self._accounts.prove(earnings)
        if num_useless := sum(not useful for _, useful in earnings):
            self.counters.add("external_useless", num_useless)
        self._pool.record_update(version, [g.key for g in local], [g.key for g in taken.groups])


def unread(policy: Policy, scorer: Scorer) -> frozenset[str]:
    """Return the multi-turn envs if the policy's chat template does not take a second turn."""
    try:
        if scorer.environments:
            policy.encode_observation("?")
    except PolicyError as error:
        log.info("groups of peers with several turns are not used: %s", error)
        return scorer.environments
    return frozenset()


def open_intake(config: Config, policy: Policy, secret: bytes, counters: Counters) -> Intake:
    engine, limit = config.engine, config.learner.max_completion_tokens
    filters = [name for name in FILTERS if name in config.mixture.filters]
    limits = GroupLimits(
        engine.group_size, engine.max_new_tokens, filters, limit, TurnLimits.of(engine)
    )
    return Intake(policy, limits, secret, counters)


def open_mixture(config: Config, rules: Rules, advantage: PeerAdvantage) -> Mixture:
    section = config.mixture
    rule = SELECTIONS.open(section.select, section.select_options, section, advantage)
    return Mixture(section, config.node.seed, rule, discard=rules.discard)


def open_reference(
    config: Config, policy: Policy, model: PreTrainedModel | None
) -> Reference | None:
    """Open the reference; None without a bound on peers' answers, or without peers.

    ``model`` is the one that the node began with; if None, that is the policy as it is now.
    """
    if not (config.mixture.peer_ratio and config.mixture.external):
        return None
    adapter = policy.adapter
    if model is None:
        model = policy.model if adapter else copy.deepcopy(policy.model)
    return Reference(
        policy,
        model,
        temperature=config.engine.temperature,
        tokens=config.learner.micro_batch_tokens,
        without=adapter.disabled if adapter else nullcontext,
    )


class TrainedPolicy:
    """A policy with its engine and its learner, of which one waits for the other.

    ``engine``, ``ranks`` and ``reference`` are as in :class:`node.run.training_loop.Trainer`.
    Raises PolicyError if the engine and the learner do not compute the model alike.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        counters: Counters,
        engine: RolloutEngine | None = None,
        ranks: Ranks | None = None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self.policy = policy
        # Whether the engine sleeps while the policy learns, as on a shared device.
        self.sleep_mode = config.engine.sleep_mode or config.schedule.oversample > 0
        self._counters = counters
        self._widest = config.widest_mismatch
        self._trim = MemoryTrimmer()
        self.streaming: RolloutEngine | None = None  # generates while the policy learns
        if engine is None:
            kind_of(config).check_policy(policy)
        if config.asynchronous and engine is None:
            self.streaming = open_streaming_engine(config, policy, counters)
        self.engine = engine or self.streaming or open_engine(config, policy, counters)
        self.learner = open_learner(
            policy,
            config.learner,
            ranks,
            temperature=config.engine.temperature,
            correction=config.mixture.correction,
            correction_options=config.mixture.correction_options,
            decoupled=self.streaming is not None and config.schedule.max_staleness > 0,
            floor="unlikely" in config.mixture.filters,
            peer_ratio=config.mixture.peer_ratio,
        )
        self._reference = open_reference(config, policy, reference)

    def learn(self, groups: Sequence[TrainingGroup], source: GroupSource) -> UpdateStats:
        """Update the policy beside ``source``, and hand it over to the engine."""
        version = self.policy.version
        if self.sleep_mode:
            self.engine.sleep()
        self._trim()  # the update's tensors take what those of the engine had
        try:
            update = source.beside(lambda: self._update(groups, source))
        except Exception as error:
            try:
                self._hand_over(version)
            except Exception as other:
                raise error from other
            raise
        self._hand_over(version)
        self._trim()
        self._count(update)
        return update

    def _update(self, groups: Sequence[TrainingGroup], source: GroupSource) -> UpdateStats:
        inputs = self._reference.read(groups) if self._reference else groups
        return self.learner.update(inputs, source.newest)

    def _hand_over(self, version: int) -> None:
        """Resume the engine, with any new weights, even those of an update that failed."""
        if self.sleep_mode:
            give_back(self.policy.device)  # the engine is in another process and needs the memory
        if self.policy.version != version:
            self.engine.update(self.policy)

    def _count(self, update: UpdateStats) -> None:
        if update.refused:
            self._counters.add("steps_refused", update.refused)
        if update.unlikely:
            self._counters.add("external_refused", update.unlikely, reason="unlikely")
        if update.halved:
            self._counters.add("micro_batch_halved", update.halved)
        mismatch = update.logprob_mismatch
        if mismatch is not None and not mismatch <= self._widest:  # NaN is a defect, too
            self._counters.add("logprob_mismatches")
            log.warning(
                "the engine's log-probs differ from the learner's by %.2g nats at equal "
                "weights; rounding explains %g. Try another engine.backend or policy.dtype",
                update.logprob_mismatch,
                self._widest,
            )


MODEL_CHARACTERS = 64


def shareable(generator: Generator, groups: Sequence[Group]) -> tuple[list[Group], Origin]:
    """Return the groups that peers may get, and the origin they get with them."""
    policy, sampling = generator.policy, generator.sampling
    limits = sampling.temperature, sampling.max_new_tokens
    origin = Origin(policy.version, public_name(policy.name), policy.encoding, *limits)
    excluded = generator.verifier.unrepeatable
    shared = [g for g in groups if g.env not in excluded and generator.indexes.shareable(g.index)]
    return shared, origin


def open_sampler(config: Config, levels: EnvLevels) -> TaskSampler:
    """Open the sampler that the config asks for, of levels that can be served here."""
    tasks = config.tasks
    size = config.engine.group_size
    curriculum = CURRICULA.open(tasks.curriculum, tasks.curriculum_options, size)
    rng = random.Random(config.node.seed)
    return TaskSampler(chosen_levels(levels, tasks.levels), tasks.weights, rng, curriculum)


def public_name(name: str) -> str:
    """Return a model's name as peers see it: printable ASCII, of a path the last part."""
    last = Path(name).name if Path(name).is_absolute() else name
    return "".join(c if " " <= c <= "~" else "?" for c in last)[:MODEL_CHARACTERS] or "model"
