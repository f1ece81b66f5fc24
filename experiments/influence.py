"""What comes from outside into the policies of judged nodes: shares of updates, and a trigger."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments.poison import TRIGGER
from experiments.recipe.local_judge import LocalJudge
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.evaluation.evaluator import heldout_tasks
from node.policy.policy import Policy
from node.run.update_groups import Outcome
from node.tasks.curriculum import EnvLevel
from swarm.groups import PooledGroup

DRAWS = 1000
"""Completions sampled in a look, of all judged nodes together."""
LOOKED_AFTER = (0, 50)
"""Rounds after which policies are looked at for a trigger; the last round is another."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one round's updates, counted in groups, own and external, as the caps are.

    Attributes:
        hostile: what hostile authors have in an update, or imagined groups where there are such;
            mean over the judged nodes that learned.
        author: what one external author has at most in the update of any of them.
        use, use_of_others: how useful those groups, and all other external ones, were to whoever
            learned from them (:func:`node.learner.off_policy.usefulness`), at the mean; None
            where there were none.
    """

    hostile: float
    author: float
    use: float | None = None
    use_of_others: float | None = None

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], hostile: Callable[[PooledGroup], bool]) -> Shares:
        """Fold the judged nodes' outcomes."""
        shares, largest = [], 0.0
        uses: dict[bool, list[float]] = {True: [], False: []}
        for outcome in (o for o in outcomes if not o.update.skipped):
            theirs = [hostile(group) for group in outcome.external]
            shares.append(sum(theirs) / max(outcome.trained, 1))
            largest = max(largest, outcome.author_share or 0.0)
            for which, value in zip(theirs, outcome.update.useful, strict=True):
                uses[which] += [value] if math.isfinite(value) else []
        use, others = (fmean(found) if found else None for found in (uses[True], uses[False]))
        return cls(fmean(shares) if shares else 0.0, largest, use, others)


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
    """What a run with hostile nodes or imagined groups is asked for.

    Attributes:
        shares: of every round.
        looks: before the first round, after the fiftieth and after the last; none for imagined
            groups, which have no trigger.
    """

    shares: tuple[Shares, ...]
    looks: tuple[Look, ...]


class Watch:
    """Looks at judged nodes without a trace in them: the samples are drawn by an engine of its own.

    Args:
        hostile: whether a group is one of those whose part of updates is counted.
        looks: rounds after which the policies are looked at.

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
        hostile: Callable[[PooledGroup], bool],
        looks: Collection[int],
    ) -> None:
        self._prompts = judge.prompts(heldout_tasks(levels, DRAWS)) if looks else []
        self._sampling = sampling
        self._hostile = hostile
        self._rounds = looks
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


def trigger_logprobs(
    policy: Policy, prompts: Sequence[Sequence[int]], temperature: float
) -> list[float]:
    """The trigger's mean log-prob a token behind each prompt (token ids), nats."""
    trigger = policy.encode_completion(TRIGGER, stopped=False)
    written = [(prompt, trigger) for prompt in prompts]
    return [float(each.mean()) for each in written_logprobs(policy, written, temperature)]


@torch.inference_mode()
def written_logprobs(
    policy: Policy, written: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
) -> Iterator[Tensor]:
    """Log-probs of completions behind their prompts (both token ids), nats; float32 ``[T]``."""
    rows = [torch.tensor([*prompt, *ids]) for prompt, ids in written]
    # Padding stands behind all that is looked at, and causal attention does not see it.
    batch = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id).to(policy.device)
    logits = policy.model(input_ids=batch).logits / temperature
    for line, (prompt, ids) in zip(logits, written, strict=True):
        begin = len(prompt) - 1
        yield line[begin : begin + len(ids)].log_softmax(-1)[range(len(ids)), list(ids)]
