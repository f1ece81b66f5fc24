"""The reference model: what a node began with, for the bound on what peers' answers change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel

from node.learner.batches import MicroBatch, Row, TrainingGroup, micro_batches
from node.learner.logprobs import TokenScores
from node.learner.micro_batching import RowCost, TokenBudget, ran_out
from node.learner.steps import Trained
from swarm.groups import informative


class Reference:
    """The model that a node began with.

    ``policy`` gives device and padding. ``model`` is the reference; with adapters it is the
    policy's own model, and ``without`` the context in which it computes without them.
    ``temperature`` divides the logits, as in sampling; ``tokens`` limits a micro-batch.
    """

    def __init__(
        self,
        policy: Trained,
        model: PreTrainedModel,
        *,
        temperature: float,
        tokens: int,
        without: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._policy = policy
        self._sharing = RowCost.of(model)
        self._budget = TokenBudget(tokens)
        self._without = without
        with without():
            self._scores = TokenScores(model, temperature, tokens)

    def read(self, groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
        """Return the groups with reference log-probs of the answers above their group's mean.

        Groups of trusted authors have none. Without a peer's answer none is computed. Raises
        NodeError if memory runs out with a single completion.
        """
        rows = [*_rows(groups)]
        results = dict[int, Tensor]()
        peers = any(not group.local for group in groups)
        while peers and not self._compute([row for row, _ in rows], results):
            results.clear()
        answers = [list(group.completions) for group in groups]
        for row, indices in rows if results else ():
            for number, index in enumerate(indices, row.first):
                answer = answers[row.group][index]
                logprobs = results[number][: len(answer.ids)]
                answers[row.group][index] = replace(answer, reference=tuple(logprobs.tolist()))
        pairs = zip(groups, answers, strict=True)
        return [replace(group, completions=tuple(done)) for group, done in pairs]

    @torch.no_grad()
    def _compute(self, rows: Sequence[Row], results: dict[int, Tensor]) -> bool:
        """Compute log-probs by completion number; return False if memory ran out."""
        budget, sharing, policy = self._budget.tokens, self._sharing, self._policy
        parts = [part for row in rows for part in sharing.rows(row, budget)]
        limits = (sharing.mask_weight, sharing.padding)
        with self._without():
            for batch in micro_batches(parts, budget, policy.pad_id, policy.device, *limits):
                if ran_out(partial(self._add, batch, results)):
                    self._budget.halve(batch)
                    return False
        return True

    def _add(self, batch: MicroBatch, results: dict[int, Tensor]) -> None:
        logprobs = self._scores(batch, entropies=False).logprobs
        results.update(zip(batch.numbers, logprobs.cpu(), strict=True))


def _rows(groups: Sequence[TrainingGroup]) -> Iterator[tuple[Row, Sequence[int]]]:
    """Return a row of each group's answers to read, and their places in the group."""
    first = 0
    for number, group in enumerate(groups):
        if group.trusted or not informative(group.rewards):
            continue
        mean = fmean(group.rewards)
        pairs = enumerate(zip(group.completions, group.rewards, strict=True))
        places = [n for n, (done, reward) in pairs if reward > mean and any(done.trained)]
        if places:
            done = tuple(group.completions[place] for place in places)
            gains = (1.0,) * len(done)
            yield Row(group.prompt_ids, done, gains, group.local, group=number, first=first), places
            first += len(done)
