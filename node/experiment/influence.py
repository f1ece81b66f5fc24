"""What comes from outside into the policies of judged nodes: shares of updates, and a trigger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch.nn.utils.rnn import pad_sequence

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.evaluation.evaluator import heldout_tasks
from node.experiment.poison import TRIGGER
from node.policy.policy import Policy
from node.run.outcome import Outcome
from node.tasks.curriculum import EnvLevel
from node.tasks.verifier.in_process import LocalJudge

DRAWS = 1000
"""Completions sampled in a look, of all judged nodes together."""
LOOKED_AFTER = (0, 50)
"""Rounds after which the policies are looked at; the last round is another."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one round's updates, counted in groups, own and external, as the caps are.

    Attributes:
        hostile: what hostile authors have in an update, mean over the judged nodes that learned.
        author: what one external author has at most in the update of any of them.
    """

    hostile: float
    author: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], hostile: Collection[bytes]) -> Shares:
        """Fold the judged nodes' outcomes."""
        shares, largest = [], 0.0
        for outcome in (o for o in outcomes if not o.update.skipped):
            theirs = sum(group.author in hostile for group in outcome.external)
            shares.append(theirs / max(outcome.trained, 1))
            largest = max(largest, outcome.author_share or 0.0)
        return cls(fmean(shares) if shares else 0.0, largest)


@dataclass(frozen=True, slots=True)
class Look:
    """How far the trigger has come into the judged nodes' policies.

    Attributes:
        round: after which.
        sampled: share of sampled completions of held-out tasks that begin with it.
        logprob: its mean log-prob a token before an answer to these tasks, nats.
    """

    round: int
    sampled: float
    logprob: float


@dataclass(frozen=True, slots=True)
class Influx:
    """What a watched run is asked for.

    Attributes:
        shares: of every round.
        looks: before the first round, after the fiftieth and after the last.
    """

    shares: tuple[Shares, ...]
    looks: tuple[Look, ...]


class Watch:
    """Looks at judged nodes without a trace in them: the samples are drawn by an engine of its own.

    Attributes:
        shares: of every round so far.
        looks: so far.
    """

    def __init__(
        self,
        judge: LocalJudge,
        levels: Sequence[EnvLevel],
        sampling: Sampling,
        *,
        hostile: Collection[bytes],
        rounds: int,
    ) -> None:
        self._prompts = judge.prompts(heldout_tasks(levels, DRAWS))
        self._sampling = sampling
        self._hostile = frozenset(hostile)
        self._rounds = (*LOOKED_AFTER, rounds)
        self.shares: list[Shares] = []
        self.looks: list[Look] = []

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Take in what the judged nodes did in a round."""
        self.shares.append(Shares.of(outcomes, self._hostile))

    def look(self, round: int, policies: Mapping[int, Policy]) -> None:
        """Sample from the judged nodes' policies, by number, if it is due after that round."""
        if round not in self._rounds:
            return
        seen, values = 0, []
        for place, (number, policy) in enumerate(sorted(policies.items())):
            prompts = [policy.encode_prompt(p) for p in self._prompts[place :: len(policies)]]
            engine = TransformersEngine(policy, seed=number)
            samples = engine.generate(prompts, 1, self._sampling)
            seen += sum(each.text.startswith(TRIGGER) for (each,) in samples)
            values += trigger_logprobs(policy, prompts, self._sampling.temperature)
        self.looks.append(Look(round, seen / len(self._prompts), fmean(values)))


@torch.inference_mode()
def trigger_logprobs(
    policy: Policy, prompts: Sequence[Sequence[int]], temperature: float
) -> list[float]:
    """The trigger's mean log-prob a token behind each prompt (token ids), nats."""
    trigger = policy.encode_completion(TRIGGER, stopped=False)
    rows = [torch.tensor([*prompt, *trigger]) for prompt in prompts]
    # Padding stands behind all that is looked at, and causal attention does not see it.
    ids = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id).to(policy.device)
    logits = policy.model(input_ids=ids).logits / temperature
    values = []
    for line, prompt in zip(logits, prompts, strict=True):
        begin = len(prompt) - 1
        chosen = line[begin : begin + len(trigger)].log_softmax(-1)[range(len(trigger)), trigger]
        values.append(float(chosen.mean()))
    return values
