"""Recorded figures of a run: rounds, CPU seconds, and influence of peers on judged nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pvariance
from typing import Any

import torch
from pydantic import TypeAdapter
from torch.nn.utils.rnn import pad_sequence

from experiments.recipe.local_verifier import LocalVerifier
from experiments.regimes import TRIGGER
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.evaluation.evaluator import SOLVED, heldout_tasks
from node.policy.policy import Policy
from node.run.update_groups import Outcome
from node.tasks.curriculum import EnvLevel
from swarm.groups import PooledGroup

DRAWS = 1000  # completions sampled per look, of all judged nodes together
LOGITS = 2**27  # values of a forward pass
LOOK_ROUNDS = (0, 50)  # rounds before a test for the trigger; the last round is added


@dataclass(frozen=True, slots=True)
class Shares:
    """Peer influence on one round's updates, counted in groups as in the limits on authors."""

    # Fraction of hostile groups in an update; mean over the judged nodes that learned.
    hostile: float
    author: float  # maximum fraction of one peer author in any of these updates

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], hostile: Callable[[PooledGroup], bool]) -> Shares:
        shares, largest = [], 0.0
        for outcome in (o for o in outcomes if not o.update.skipped):
            theirs = [hostile(group) for group in outcome.external]
            shares.append(sum(theirs) / max(outcome.trained, 1))
            largest = max(largest, outcome.author_share or 0.0)
        return cls(fmean(shares) if shares else 0.0, largest)


@dataclass(frozen=True, slots=True)
class Look:
    """Effect of the trigger on the judged nodes' policies."""

    round: int  # number of finished rounds
    sampled: float  # fraction of sampled completions of held-out tasks that begin with the trigger
    logprob: float  # its mean log-prob per token at the start of these answers, nats


@dataclass(frozen=True, slots=True)
class Influx:
    """Influence of hostile groups in a run."""

    shares: tuple[Shares, ...]  # one per round
    looks: tuple[Look, ...]


class InfluenceMonitor:
    """Measure the influence on judged nodes with engines of its own, without changing the nodes.

    Args:
        hostile: whether to count a group as hostile.
        looks: rounds after which policies are tested for the trigger.
        opening: the trigger.

    Attributes:
        shares: one per round so far.
        looks: looks so far.
    """

    def __init__(
        self,
        verifier: LocalVerifier,
        levels: Sequence[EnvLevel],
        sampling: Sampling,
        *,
        hostile: Callable[[PooledGroup], bool],
        looks: Collection[int],
        opening: str = TRIGGER,
    ) -> None:
        self._opening = opening
        self._prompts = verifier.prompts(heldout_tasks(levels, DRAWS)) if looks else []
        self._sampling = sampling
        self._hostile = hostile
        self._rounds = looks
        self.shares: list[Shares] = []
        self.looks: list[Look] = []

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Add the judged nodes' outcomes of a round."""
        self.shares.append(Shares.of(outcomes, self._hostile))

    def look(self, round: int, policies: Mapping[int, Policy]) -> None:
        """Sample from the judged nodes' policies, by number, if a look is due after this round."""
        if round not in self._rounds:
            return
        seen, values = 0, []
        for place, (number, policy) in enumerate(sorted(policies.items())):
            prompts = [policy.encode_prompt(p) for p in self._prompts[place :: len(policies)]]
            engine = TransformersEngine(policy, seed=number)
            samples = engine.generate(prompts, 1, self._sampling)
            seen += sum(each.text.startswith(self._opening) for (each,) in samples)
            temperature = self._sampling.temperature
            values += trigger_logprobs(policy, prompts, temperature, self._opening)
        self.looks.append(Look(round, seen / len(self._prompts), fmean(values)))


@torch.inference_mode()
def trigger_logprobs(
    policy: Policy, prompts: Sequence[Sequence[int]], temperature: float, opening: str = TRIGGER
) -> list[float]:
    """Return the trigger's mean log-prob per token after each prompt (token ids), nats."""
    trigger = policy.encode_completion(opening, stopped=False)
    rows = [torch.tensor([*prompt, *trigger]) for prompt in prompts]
    # Padding follows the trigger, and causal attention ignores it.
    batch = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id).to(policy.device)
    values = batch.shape[1] * policy.model.config.get_text_config().vocab_size
    parts = torch.split(batch, max(1, LOGITS // values))
    logits = (line for part in parts for line in policy.model(input_ids=part).logits)
    means = []
    for line, prompt in zip(logits, prompts, strict=True):
        begin = len(prompt) - 1
        chosen = line[begin : begin + len(trigger)].float() / temperature
        means.append(float(chosen.log_softmax(-1)[range(len(trigger)), trigger].mean()))
    return means


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round of a swarm; means are over the judged nodes."""

    # Mean reward of local completions, one value per node, judged or not; None for absent nodes.
    reward: tuple[float | None, ...]
    solved: float  # mean fraction of right local completions
    tokens: float  # mean generated tokens without evaluation
    informative: float  # mean fraction of informative local groups
    external: float  # mean number of peer groups in the update
    trained: float  # mean number of informative groups in the update
    entropy: float | None  # mean over the policies that learned, nats per token
    variance: float  # mean variance of rewards within a local group
    evaluation: float | None  # mean reward on held-out tasks; None if no evaluation was due

    @classmethod
    def of(cls, by_node: Sequence[Outcome | None], judged: Collection[int]) -> RoundFigures:
        """Compute the figures from the outcomes of all nodes, by number; absent nodes have None."""
        outcomes = [o for number, o in enumerate(by_node) if o and number in judged]
        groups = [[g.training.rewards for g in outcome.local] for outcome in outcomes]
        rewards = [[r for group in local for r in group] for local in groups]
        updates = [outcome.update for outcome in outcomes if not outcome.update.skipped]
        entropies = [update.entropy for update in updates if update.entropy is not None]
        evaluations = [o.evaluation for o in outcomes if o.evaluation is not None]
        return cls(
            reward=tuple(_reward(outcome) if outcome else None for outcome in by_node),
            solved=fmean(fmean(r >= SOLVED for r in local) for local in rewards),
            tokens=fmean(o.generated for o in outcomes),
            informative=fmean(fmean(g.informative for g in o.local) for o in outcomes),
            external=fmean(len(o.external) for o in outcomes),
            trained=fmean(o.update.groups_informative for o in outcomes),
            entropy=fmean(entropies) if entropies else None,
            variance=fmean(fmean(pvariance(group) for group in local) for local in groups),
            evaluation=fmean(evaluations) if evaluations else None,
        )

    def mean_reward(self, nodes: Collection[int]) -> float:
        return fmean(r for n, r in enumerate(self.reward) if r is not None and n in nodes)


def _reward(outcome: Outcome) -> float:
    return fmean(r for group in outcome.local for r in group.training.rewards)


@dataclass(frozen=True, slots=True)
class Recording:
    """One run."""

    arm: str
    seed: int
    rounds: tuple[RoundFigures, ...]  # figures by round, a function of the configuration
    seconds: tuple[float, ...]  # CPU time of each round, all nodes together; depends on the machine
    influx: Influx | None = None  # influence of peers, in a regime that is watched
    coverage: float | None = None  # pass@8 of the final policies on held-out tasks, if measured

    def rewards(self, nodes: Collection[int]) -> list[float]:
        return [figures.mean_reward(nodes) for figures in self.rounds]

    def as_json(self) -> str:
        """Encode all except the seconds, so that equal runs have equal bytes."""
        columns = [asdict(figures) for figures in self.rounds]
        table = {name: [row[name] for row in columns] for name in columns[0]}
        whole: dict[str, Any] = {"arm": self.arm, "seed": self.seed, "rounds": table}
        if self.influx:
            whole["influx"] = asdict(self.influx)
        if self.coverage is not None:
            whole["coverage"] = self.coverage
        return json.dumps(whole)

    @classmethod
    def from_json(cls, text: str, seconds: Sequence[float]) -> Recording:
        value: dict[str, Any] = json.loads(text)
        table: dict[str, list[Any]] = value["rounds"]
        table["reward"] = [tuple(row) for row in table["reward"]]
        rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
        rounds = tuple(RoundFigures(**row) for row in rows)
        influx = _INFLUX.validate_python(value.get("influx"))
        coverage = value.get("coverage")
        return cls(value["arm"], value["seed"], rounds, tuple(seconds), influx, coverage)


_INFLUX: TypeAdapter[Influx | None] = TypeAdapter(Influx | None)
