"""Writing own experience: draw tasks, sample completions, have them scored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from node.draws import Draws
from node.engines.engine import RolloutEngine, Sample, Sampling
from node.evaluation import Scorer, fitting
from node.experience import OwnGroup, own_group
from node.policy import Policy
from node.stopwatch import Stopwatch
from node.tasks.curriculum import TaskSampler
from node.tasks.task import Split
from protocol.keys import task_seed
from swarm.counters import Counters
from swarm.judge import JudgeRefused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draw:
    """One task to roll out: the family and level are chosen, the seed follows from the rest."""

    env: str
    level: int
    epoch: int
    index: int
    seed: int


class Generator:
    """Turns the next draws of a node into scored groups.

    The seed of a task follows from the author's key and a draw that is never used again, so that
    any reader can rebuild the task.
    """

    def __init__(
        self,
        *,
        author: bytes,
        policy: Policy,
        engine: RolloutEngine,
        verifier: Scorer,
        sampler: TaskSampler,
        draws: Draws,
        sampling: Sampling,
        group_size: int,
        counters: Counters,
    ) -> None:
        self._author = author
        self._policy = policy
        self._engine = engine
        self._verifier = verifier
        self._sampler = sampler
        self._draws = draws
        self._sampling = sampling
        self._group_size = group_size
        self._counters = counters

    def generate(self, count: int, watch: Stopwatch) -> list[OwnGroup]:
        """Roll out ``count`` tasks.

        A task whose prompt does not fit the policy's context, or whose answers cannot be scored,
        is left out and counted.

        Raises:
            NodeError: none of the prompts fits.
        """
        draws = [self._draw(*drawn) for drawn in self._draws.take(count)]
        with watch.time("verify"):
            prompts = self._verifier.prompts([(d.env, d.level, d.seed, Split.TRAIN) for d in draws])
        with watch.time("generate"):
            encoded = [self._policy.encode_prompt(prompt) for prompt in prompts]
            draws, encoded = self._fitting(draws, encoded)
            samples = self._engine.generate(encoded, self._group_size, self._sampling)
        with watch.time("verify"):
            scored = [self._score(d, s) for d, s in zip(draws, samples, strict=True)]
        for draw, rewards in zip(draws, scored, strict=True):
            if rewards is not None:
                self._sampler.observe((draw.env, draw.level), rewards)
        return [
            own_group(draw.env, draw.level, draw.epoch, draw.index, ids, group, rewards)
            for draw, ids, group, rewards in zip(draws, encoded, samples, scored, strict=True)
            if rewards is not None
        ]

    def _fitting(
        self, draws: list[Draw], encoded: list[list[int]]
    ) -> tuple[list[Draw], list[list[int]]]:
        fits = fitting(self._policy, encoded)
        if left_out := fits.count(False):
            self._counters.add("own_prompts_too_long", left_out)
            log.warning("%d of %d prompts do not fit the context", left_out, len(draws))
        return list(compress(draws, fits)), list(compress(encoded, fits))

    def _draw(self, epoch: int, index: int) -> Draw:
        env, level = self._sampler.next()
        return Draw(env, level, epoch, index, task_seed(self._author, epoch, index))

    def _score(self, draw: Draw, samples: Sequence[Sample]) -> tuple[float, ...] | None:
        try:
            verdict = self._verifier.judge(
                draw.env, draw.level, draw.seed, [s.text for s in samples]
            )
        except JudgeRefused as refused:
            self._counters.add("own_groups_unscored", reason=refused.reason)
            log.warning("own group of %s could not be scored: %s", draw.env, refused)
            return None
        return verdict.rewards
