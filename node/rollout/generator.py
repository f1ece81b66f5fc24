"""Writing own experience: draw tasks, sample completions, have them scored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeVar

from node.engines.engine import RolloutEngine, Sample, Sampling
from node.evaluation.evaluator import LONGER_CONTEXT, fitting
from node.monitor.stopwatch import Stopwatch
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup, own_group
from node.rollout.task_indexes import Draws
from node.tasks.curriculum import EnvLevel
from node.tasks.sampler import TaskSampler
from node.tasks.scorer import Scorer, buildable, judge_all, nothing_built
from node.tasks.task import Split
from protocol.keys import task_seed
from swarm.common.counters import Counters
from swarm.judge import Asked, JudgeRefused

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        self.sampler = sampler
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
            JudgeRefused: none can be built.
        """
        draws = self.draw(count)
        with watch.time("verify"):
            prompts = self.prompts(draws)
        with watch.time("generate"):
            asked = [(d, p) for d, p in zip(draws, prompts, strict=True) if p is not None]
            if draws and not asked:
                raise nothing_built(len(draws))
            draws = [draw for draw, _ in asked]
            encoded = [self._policy.encode_prompt(prompt) for _, prompt in asked]
            draws, encoded = self._fitting(draws, encoded)
            samples = self._engine.generate(encoded, self._group_size, self._sampling)
        with watch.time("verify"):
            scored = self._score(list(zip(draws, encoded, samples, strict=True)))
            groups = [group for group in scored if group is not None]
        self.observe(groups)
        return groups

    def observe(self, groups: Iterable[OwnGroup]) -> None:
        """Let further draws follow from how these groups went."""
        for each in groups:
            self.sampler.observe((each.group.env, each.group.level), each.training.rewards)

    def beside(self, work: Callable[[], T]) -> T:
        """Do ``work``; nothing is generated meanwhile."""
        return work()

    @property
    def levels(self) -> tuple[EnvLevel, ...]:
        """What tasks are drawn from."""
        return self.sampler.levels

    def draw(self, count: int) -> list[Draw]:
        """The next ``count`` tasks."""
        return [self._draw(*drawn) for drawn in self._draws.take(count)]

    def prompts(self, draws: Sequence[Draw]) -> list[str | None]:
        """The prompts of some tasks; None, counted, where one cannot be built.

        May be called beside everything else.

        Raises:
            JudgeRefused: nothing can be built now.
        """
        tasks = [(d.env, d.level, d.seed, Split.TRAIN) for d in draws]
        return buildable(self._verifier, tasks, lambda n, why: self._unscored(draws[n], why))

    def score(
        self, draw: Draw, prompt_ids: Sequence[int], samples: Sequence[Sample]
    ) -> OwnGroup | None:
        """The group that these completions make, or None, counted, where they cannot be scored.

        May be called beside everything else.
        """
        return next(self._score([(draw, prompt_ids, samples)]))

    def _score(
        self, rolled_out: Sequence[tuple[Draw, Sequence[int], Sequence[Sample]]]
    ) -> Iterator[OwnGroup | None]:
        asked = [
            Asked(draw.env, draw.level, draw.seed, [sample.text for sample in samples])
            for draw, _, samples in rolled_out
        ]
        outcomes = judge_all(self._verifier, asked)
        for (draw, prompt_ids, samples), found in zip(rolled_out, outcomes, strict=True):
            if isinstance(found, JudgeRefused):
                self._unscored(draw, found)
                yield None
            else:
                yield own_group(
                    draw.env,
                    draw.level,
                    draw.epoch,
                    draw.index,
                    prompt_ids,
                    samples,
                    found.rewards,
                )

    def _unscored(self, draw: Draw, refused: JudgeRefused) -> None:
        self._counters.add("own_groups_unscored", reason=refused.reason)
        log.warning("own group of %s could not be scored: %s", draw.env, refused)

    def _fitting(
        self, draws: list[Draw], encoded: list[list[int]]
    ) -> tuple[list[Draw], list[list[int]]]:
        fits = fitting(self._policy, encoded)
        if left_out := fits.count(False):
            self._counters.add("own_prompts_too_long", left_out)
            log.warning(
                "%d of %d prompts, of up to %d tokens, do not fit the policy's context of %d: they "
                "are left out. %s",
                left_out,
                len(draws),
                max(map(len, encoded)),
                self._policy.context_length,
                LONGER_CONTEXT,
            )
        return list(compress(draws, fits)), list(compress(encoded, fits))

    def _draw(self, epoch: int, index: int) -> Draw:
        env, level = self.sampler.next()
        return Draw(env, level, epoch, index, task_seed(self._author, epoch, index))
