"""Whether a policy can learn from a swarm's tasks at all, tried before the first round."""

from __future__ import annotations

from dataclasses import dataclass

from node.evaluation.evaluator import SOLVED, Evaluation
from node.monitor.record import percent, share

TASKS = 16
"""Held-out tasks that a policy is tried on, of each as many completions as a group has."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a policy makes of a sample of a swarm's tasks before it has learned anything.

    Attributes:
        tasks: that were tried.
        fit: share of them whose prompt leaves room for a completion, 0 to 1.
        reward: mean reward over all completions, 0 to 1.
        informative: share of tasks whose completions differ in reward, 0 to 1: only those teach.
        takes: whether the node takes groups of others.
    """

    tasks: int
    fit: float
    reward: float
    informative: float
    takes: bool

    @classmethod
    def of(cls, evaluation: Evaluation, *, takes: bool) -> Assessment:
        """Read an evaluation with several completions a task."""
        rows, count = evaluation.rewards, len(evaluation.tasks)
        return cls(
            tasks=count,
            fit=1 - evaluation.unfit / count,
            reward=evaluation.mean,
            informative=sum(min(row) < max(row) for row in rows) / count,
            takes=takes,
        )

    def lines(self) -> tuple[str, ...]:
        """What was found, the verdict, and what to do where it is not good."""
        found = (
            f"tried on {self.tasks} tasks: {percent(self.fit)} of prompts fit, reward "
            f"{share(self.reward)}, rewards differ in {percent(self.informative)} of groups: "
            f"{self._verdict()}"
        )
        if self.fit >= 0.5:
            return (found,)
        return (
            found,
            "most prompts do not fit this policy's context and are skipped: choose a policy.model "
            "with a longer one, or leave the families with long prompts out with tasks.weights",
        )

    def _verdict(self) -> str:
        if self.informative:
            return "it can learn from its own rollouts"
        if self.reward >= SOLVED:
            return "nothing is left to learn here; choose harder tasks with tasks.weights"
        remedy = "choose easier tasks with tasks.weights or a stronger policy.model"
        if self.takes:
            return (
                "it will learn only from what others share; name peers who solve these tasks with "
                f"--peers, or {remedy}"
            )
        return f"it cannot learn here: take groups of others (mixture.external), or {remedy}"
