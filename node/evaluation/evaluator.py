"""How good the policy is on questions nobody trains on."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from node.engines.engine import RolloutEngine, Sampling
from node.errors import NodeError
from node.playing.limits import TurnLimits
from node.playing.played import Played
from node.playing.player import Player, judged
from node.policy.policy import Policy
from node.tasks.scorer import Scorer, buildable, nothing_built
from protocol.keys import heldout_seed
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.verification import JudgeRefused

log = logging.getLogger(__name__)

SOLVED = 1.0 - 1e-6
LONGER_CONTEXT = "Choose a model with a longer context, or other envs with tasks.weights."


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards on held-out tasks: one row a task, one entry a completion.

    Attributes:
        unbuilt: tasks that could not be built, with rewards of 0.
        unfit: tasks whose prompt leaves no room for a completion, with rewards of 0.
        prompts: of the tasks, where they are known; None for one that could not be built.
        written: the completions, where they are known; none of a task that was not answered.
    """

    tasks: tuple[TaskRef, ...]
    rewards: tuple[tuple[float, ...], ...]
    unbuilt: int = 0
    unfit: int = 0
    prompts: tuple[str | None, ...] = ()
    written: tuple[tuple[Played, ...], ...] = ()

    @property
    def mean(self) -> float:
        """Mean reward over all completions."""
        return sum(sum(row) / len(row) for row in self.rewards) / len(self.rewards)

    def pass_at(self, k: int) -> float:
        """Chance that one of ``k`` completions solves a task, averaged over tasks.

        The unbiased estimate ``1 - C(n-c, k) / C(n, k)`` of Chen et al. (arXiv 2107.03374).

        Raises:
            ValueError: ``k`` exceeds the completions sampled for a task.
        """
        shares = []
        for row in self.rewards:
            n, solved = len(row), sum(reward >= SOLVED for reward in row)
            if k > n:
                raise ValueError(f"pass@{k} needs {k} completions a task, there are {n}")
            shares.append(1.0 - math.comb(n - solved, k) / math.comb(n, k))
        return sum(shares) / len(shares)


def heldout_tasks(levels: Sequence[tuple[str, int]], count: int) -> tuple[TaskRef, ...]:
    """The first ``count`` held-out tasks, taking the ``(env, level)`` pairs in turn."""
    return tuple(
        TaskRef(env, level, heldout_seed(env, number // len(levels)), Split.HELDOUT)
        for number, (env, level) in ((n, levels[n % len(levels)]) for n in range(count))
    )


def fitting(policy: Policy, prompts: Sequence[Sequence[int]]) -> list[bool]:
    """For each of some prompts (token ids) whether it leaves room for a completion.

    Raises:
        NodeError: there are prompts, and none does.
    """
    fits = [0 < len(ids) < policy.context_length for ids in prompts]
    if fits and not any(fits):
        raise NodeError(
            "no prompt leaves room for an answer in the policy's context",
            f"{min(map(len, prompts))} tokens or more, context {policy.context_length}",
            LONGER_CONTEXT,
        )
    return fits


class Evaluator:
    """Samples completions for a fixed set of held-out tasks and has them scored.

    Args:
        sampling: with a seed, evaluations of the same weights are the same.
        counters: ``heldout_unbuilt{reason}``; ``heldout_lost``, trajectories whose environment was
            lost, which are worth nothing.
    """

    def __init__(
        self,
        policy: Policy,
        engine: RolloutEngine,
        verifier: Scorer,
        tasks: Sequence[TaskRef],
        sampling: Sampling,
        counters: Counters,
        limits: TurnLimits = TurnLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._policy = policy
        self._player = Player(policy, engine, verifier, limits)
        self._verifier = verifier
        self._tasks = tuple(tasks)
        self._sampling = sampling
        self._counters = counters

    def evaluate(self, completions: int = 1) -> Evaluation:
        """Score ``completions`` samples of every task under the current policy.

        A task whose prompt cannot be built or does not fit the policy's context counts as unsolved.

        Raises:
            NodeError: none of the prompts fits.
            JudgeRefused: none can be built, or answers cannot be scored.
        """
        prompts = buildable(
            self._verifier, self._tasks, lambda n, why: self._unbuilt(self._tasks[n], why)
        )
        if prompts and not any(each is not None for each in prompts):
            raise nothing_built(len(prompts))
        encoded = [self._policy.encode_prompt(each) for each in prompts if each is not None]
        fits = fitting(self._policy, encoded)
        if not all(fits):
            log.warning("%d of %d held-out prompts do not fit", fits.count(False), len(fits))
        fit = iter(fits)
        answered = [prompt is not None and next(fit) for prompt in prompts]
        tasks = list(compress(self._tasks, answered))
        fitted = list(compress(encoded, fits))
        written = self._player.play(tasks, fitted, completions, self._sampling)
        scored, groups = self._scored(tasks, written), iter(written)
        return Evaluation(
            self._tasks,
            tuple(next(scored) if each else (0.0,) * completions for each in answered),
            unbuilt=prompts.count(None),
            unfit=fits.count(False),
            prompts=tuple(prompts),
            written=tuple(tuple(next(groups)) if each else () for each in answered),
        )

    def _scored(
        self, tasks: Sequence[TaskRef], written: Sequence[Sequence[Played]]
    ) -> Iterator[tuple[float, ...]]:
        pairs = list(zip(tasks, written, strict=True))
        for (task, group), found in zip(pairs, judged(self._verifier, pairs), strict=True):
            if not isinstance(found, JudgeRefused):
                yield found.rewards
            elif lost := sum(each.lost is not None for each in group):
                self._counters.add("heldout_lost", lost)
                log.warning("%d held-out trajectories of %s are lost: %s", lost, task.env, found)
                yield tuple(each.reward or 0.0 for each in group)
            else:
                raise found

    def _unbuilt(self, task: TaskRef, refused: JudgeRefused) -> None:
        self._counters.add("heldout_unbuilt", reason=refused.reason)
        log.warning("a held-out task of %s counts as unsolved: %s", task.env, refused)
