"""The policy of a node between what writes with it and what changes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from node.config.config import Config
from node.distributed.ranks import Ranks
from node.distributed.sharded_learner import open_learner
from node.engines.engine import RolloutEngine
from node.engines.registry import kind_of, open_engine, open_streaming_engine
from node.learner.batches import TrainingGroup
from node.learner.update_stats import UpdateStats
from node.policy.device import give_back
from node.policy.policy import Policy
from node.rollout.groups import GroupSource
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

WIDE_GAP = 0.05
"""Nats a token, at the mean, between engine and learner."""


class TrainedPolicy:
    """A policy with its engine and its learner, of which one waits for the other.

    Args:
        engine: what completions come from; left out, what the configuration asks for.
        ranks: processes that the learner is divided over; left out, it works alone.

    Raises:
        PolicyError: that engine and the learner do not read the model alike.

    Attributes:
        streaming: the engine, where it goes on writing while the policy learns.
        sleep_mode: the engine rests while the policy learns, as on a device that both share; in
            between the learner leaves it the memory.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        counters: Counters,
        engine: RolloutEngine | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self.sleep_mode = config.engine.sleep_mode or config.schedule.over_provision > 0
        self._counters = counters
        self.streaming: RolloutEngine | None = None
        if engine is None:
            kind_of(config).check_policy(policy)
        if config.overlaps and engine is None:
            threads = torch.get_num_threads()
            self.streaming = open_streaming_engine(config, policy, counters, threads)
        self.engine = engine or self.streaming or open_engine(config, policy, counters)
        self.learner = open_learner(
            policy,
            config.learner,
            ranks,
            temperature=config.engine.temperature,
            correction=config.mixture.correction,
            correction_options=config.mixture.correction_options,
            decoupled=self.streaming is not None and config.schedule.max_staleness > 0,
            floor="unlikely" in config.mixture.refuse,
        )

    def learn(self, groups: Sequence[TrainingGroup], source: GroupSource) -> UpdateStats:
        """Update the policy beside ``source``, and hand it over to the engine."""
        before = self.policy.version
        if self.sleep_mode:
            self.engine.rest()
        try:
            update = source.beside(lambda: self.learner.update(groups, source.newest))
        except Exception as error:
            try:
                self._hand_over(before)
            except Exception as other:
                raise error from other
            raise
        self._hand_over(before)
        self._count(update)
        return update

    def _hand_over(self, before: int) -> None:
        """Let the engine go on, with new weights where the version is no longer ``before``.

        That is so also after an update that failed in a later step than its first.
        """
        if self.sleep_mode:
            give_back(self.policy.device)  # the engine is in another process, and needs the room
        if self.policy.version != before:
            self.engine.update(self.policy)

    def _count(self, update: UpdateStats) -> None:
        if update.refused:
            self._counters.add("steps_refused", update.refused)
        if update.unlikely:
            self._counters.add("external_refused", update.unlikely, reason="unlikely")
        if update.halved:
            self._counters.add("micro_batch_halved", update.halved)
        if update.engine_gap is not None and update.engine_gap > WIDE_GAP:
            self._counters.add("engine_gaps")
            log.warning(
                "the engine's log-probs are %.3f nat off the learner's at equal weights: a defect "
                "or too coarse a policy.dtype",
                update.engine_gap,
            )
