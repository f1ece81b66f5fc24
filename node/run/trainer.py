"""The learning side of a node: everything between the tasks and the policy.

It needs a journal and a verifier but no network and no files, so a node in a process of its own
and a simulated one among many run the same parts.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256

from node.config.config import Config
from node.config.mixing import MixtureSection
from node.distributed.ranks import Ranks
from node.engines.engine import RolloutEngine, Sampling
from node.evaluation.assessment import TASKS, Assessment
from node.evaluation.evaluator import Evaluator, heldout_tasks
from node.evaluation.forgetting import ForgettingAlarm
from node.playing.limits import TurnLimits
from node.playing.player import Player
from node.policy.policy import Policy
from node.rollout.generator import TaskIndexes
from node.rollout.replay import SemiOnline, SemiOnlineLimits, SuccessPool
from node.run.external_groups import ExternalGroups, open_intake, open_mixture
from node.run.outcome import Outcome
from node.run.own_groups import OwnGroups, open_sampler
from node.run.rounds import Rounds
from node.run.rules import Rules
from node.run.trained_policy import TrainedPolicy
from node.tasks.curriculum import EnvLevel
from node.tasks.scorer import Scorer
from protocol.manifest import Manifest
from protocol.rollout import Group
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import Origin
from swarm.journal import Journal
from swarm.member import Experience
from swarm.mixture.peer_advantage import PeersLead
from swarm.pool import Pool


class Trainer:
    """A policy in training with the groups that it learns from, and the rounds over them.

    Args:
        author: the node's public key; task seeds follow from it.
        manifest: the swarm's.
        levels: what the verifier can serve here.
        engine: what completions come from; left out, what the config asks for.
        ranks: processes that the learner is divided over; left out, it works alone.
        secret: what others must not know of this node's choices; left out, it is drawn.

    Attributes:
        policy, engine, learner, sampler, lead, alarm: what a checkpoint is made of.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        *,
        author: bytes,
        manifest: Manifest,
        levels: Sequence[EnvLevel],
        verifier: Scorer,
        experience: Experience,
        clock: Clock,
        counters: Counters,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        engine: RolloutEngine | None = None,
        ranks: Ranks | None = None,
        secret: bytes = b"",
    ) -> None:
        self._config, self._rules, self._counters = config, rules, counters
        journal, epoch = experience.journal, manifest.epoch_seconds
        indexes = TaskIndexes(journal, clock, epoch, manifest.max_groups_per_epoch, random.Random())
        sampling = Sampling(config.engine.temperature, config.engine.max_new_tokens)
        self.sampler = open_sampler(config, levels)
        heldout = heldout_tasks(self.sampler.levels, config.schedule.eval_tasks)
        self.alarm = ForgettingAlarm(counters, heldout)
        self.lead = PeersLead()
        self._trained = trained = TrainedPolicy(config, policy, counters, engine, ranks)
        self.policy, self.engine, self.learner = policy, trained.engine, trained.learner
        # How often there is an evaluation must not change what is trained on.
        drawn = replace(sampling, seed=evaluation_seed(config.node.seed))
        limits = TurnLimits.of(config.engine)
        self._evaluator, self._trial = (
            Evaluator(policy, self.engine, verifier, tasks, drawn, counters, limits)
            for tasks in (heldout, heldout[:TASKS])
        )
        self._semi_online = SemiOnline(
            SemiOnlineLimits(config.mixture.semi_online, config.mixture.patches),
            Player(policy, self.engine, verifier, limits),
            policy,
            verifier,
            sampling,
            config.engine.group_size,
            counters,
        )
        self._own = OwnGroups(
            config, trained, self.sampler, indexes, sampling, verifier, journal, counters, author
        )
        self._external = ExternalGroups(
            experience,
            open_mixture(config, rules, self.lead),
            open_intake(config, policy, manifest, secret or secrets.token_bytes(16), counters),
            counters,
            successes=SuccessPool(config.mixture.successes, counters),
            spared=config.mixture.external if rules.fill else 0,
        )

    def rounds(
        self,
        *,
        publish: Callable[[Sequence[Group], Origin], None],
        save: Callable[[int], None],
        report: Callable[[Outcome], None],
        rate: Callable[[int, float], bool],
        done: int = 0,
    ) -> Rounds:
        """The loop, after ``done`` rounds."""
        return Rounds(
            source=self._own.source(done),
            external=self._external,
            semi_online=self._semi_online,
            trained=self._trained,
            evaluate=self._evaluate,
            publish=lambda groups: publish(*self._own.shareable(groups)),
            save=save,
            rate=rate,
            report=report,
            counters=self._counters,
            local=self._config.mixture.local,
            schedule=self._config.schedule,
            rules=self._rules,
            round=done,
        )

    def assess(self) -> Assessment:
        """Try the policy on some held-out tasks, a group of completions each.

        Raises:
            NodeError: no prompt fits.
            JudgeRefused: no task can be built, or answers cannot be scored.
        """
        config = self._config
        evaluation = self._trial.evaluate(config.engine.group_size)
        return Assessment.of(
            evaluation, takes=config.mixture.external > 0 and config.network.pulls_per_epoch > 0
        )

    def _evaluate(self) -> float:
        evaluation = self._evaluator.evaluate()
        if not evaluation.unbuilt:
            rewards = [sum(row) / len(row) for row in evaluation.rewards]
            self.alarm.look(rewards, self.policy.version)
        return evaluation.mean

    def close(self) -> None:
        """Keep what is begun and let go of the engine."""
        self._own.close()
        self.engine.close()


def evaluation_seed(seed: int) -> int:
    """Of the chance in evaluations, by the node's seed."""
    return int.from_bytes(sha256(f"evaluation/{seed}".encode()).digest()[:7])


def open_experience(
    config: MixtureSection, journal: Journal, clock: Clock, counters: Counters, salt: bytes
) -> Experience:
    """What a node's configuration asks for, in its journal.

    Args:
        salt: see :class:`swarm.pool.PoolLimits`.
    """
    pool = Pool(
        journal,
        config.pool_groups,
        config.max_age,
        clock,
        counters,
        max_uses=config.max_uses,
        newcomer_share=config.newcomer_share,
        salt=salt,
    )
    return Experience.around(pool, journal, clock, counters)
