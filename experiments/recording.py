"""What is kept of a run: the figures of every round, and beside them the seconds they took."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pvariance
from typing import Any

from pydantic import TypeAdapter

from experiments.influence import Influx
from node.evaluation.evaluator import SOLVED
from node.run.update_groups import Outcome


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round of a swarm; means are over the judged ones of its nodes.

    Attributes:
        reward: mean reward of own completions, a figure a node, judged or not; None while a node
            takes no part.
        solved: mean share of own completions that are right.
        tokens: mean generated tokens, evaluation not counted.
        informative: mean share of own groups whose rewards differ.
        external: mean number of external groups trained on.
        trained: mean number of informative groups in the update.
        entropy: of the policies, nats a token, over the nodes that learned; None if none did.
        variance: mean variance of the rewards within an own group.
        evaluation: mean reward on held-out tasks; None where it was not due.
    """

    reward: tuple[float | None, ...]
    solved: float
    tokens: float
    informative: float
    external: float
    trained: float
    entropy: float | None
    variance: float
    evaluation: float | None

    @classmethod
    def of(cls, everybody: Sequence[Outcome | None], judged: Collection[int]) -> RoundFigures:
        """Fold what the nodes did; some of those with a number in ``judged`` take part."""
        outcomes = [o for number, o in enumerate(everybody) if o and number in judged]
        groups = [[g.training.rewards for g in outcome.own] for outcome in outcomes]
        rewards = [[r for group in own for r in group] for own in groups]
        updates = [outcome.update for outcome in outcomes if not outcome.update.skipped]
        entropies = [update.entropy for update in updates if update.entropy is not None]
        evaluations = [o.evaluation for o in outcomes if o.evaluation is not None]
        return cls(
            reward=tuple(_reward(outcome) if outcome else None for outcome in everybody),
            solved=fmean(fmean(r >= SOLVED for r in own) for own in rewards),
            tokens=fmean(o.generated for o in outcomes),
            informative=fmean(fmean(g.informative for g in o.own) for o in outcomes),
            external=fmean(len(o.external) for o in outcomes),
            trained=fmean(o.update.groups_informative for o in outcomes),
            entropy=fmean(entropies) if entropies else None,
            variance=fmean(fmean(pvariance(group) for group in own) for own in groups),
            evaluation=fmean(evaluations) if evaluations else None,
        )

    def mean_reward(self, nodes: Collection[int]) -> float:
        """Over those of ``nodes``, by number, that take part."""
        return fmean(r for n, r in enumerate(self.reward) if r is not None and n in nodes)


def _reward(outcome: Outcome) -> float:
    return fmean(r for group in outcome.own for r in group.training.rewards)


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole run.

    Attributes:
        arm: name.
        seed: of the experiment.
        rounds: in their order; a function of the configuration.
        seconds: CPU time of each round, all nodes together; what the machine happened to take.
        influx: what came from outside, in a regime that is watched.
    """

    arm: str
    seed: int
    rounds: tuple[RoundFigures, ...]
    seconds: tuple[float, ...]
    influx: Influx | None = None

    def rewards(self, nodes: Collection[int]) -> list[float]:
        """Mean reward of these nodes in every round."""
        return [figures.mean_reward(nodes) for figures in self.rounds]

    def as_json(self) -> str:
        """All but the seconds, so that equal runs give equal bytes."""
        columns = [asdict(figures) for figures in self.rounds]
        table = {name: [row[name] for row in columns] for name in columns[0]}
        whole: dict[str, Any] = {"arm": self.arm, "seed": self.seed, "rounds": table}
        if self.influx:
            whole["influx"] = asdict(self.influx)
        return json.dumps(whole)

    @classmethod
    def from_json(cls, text: str, seconds: Sequence[float]) -> Recording:
        """Read :meth:`as_json` back."""
        value: dict[str, Any] = json.loads(text)
        table: dict[str, list[Any]] = value["rounds"]
        table["reward"] = [tuple(row) for row in table["reward"]]
        rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
        rounds = tuple(RoundFigures(**row) for row in rows)
        influx = _INFLUX.validate_python(value.get("influx"))
        return cls(value["arm"], value["seed"], rounds, tuple(seconds), influx)


_INFLUX: TypeAdapter[Influx | None] = TypeAdapter(Influx | None)
