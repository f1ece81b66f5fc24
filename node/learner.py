"""One policy update on a mixture of own and outside groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from node.advantages import group_advantages, informative
from node.batches import (
    MicroBatch,
    Row,
    TrainingCompletion,
    TrainingGroup,
    held_tokens,
    micro_batches,
)
from node.learner_config import LearnerConfig
from node.logprobs import distributions, token_entropies, token_logprobs
from node.losses import (
    LOSSES,
    Clip,
    Counts,
    Stale,
    Terms,
    decoupled_weights,
    interpolated_prox,
    tapered_weights,
    tis_weights,
)
from node.optimizer import Optimizer, OptimizerConfig
from node.out_of_memory import TokenBudget, no_room_to_step, ran_out
from node.recomputing import Recomputing
from node.sharing import Sharing, fits
from node.update_stats import Tally, UpdateStats

__all__ = ["Learner", "LearnerConfig", "TrainingCompletion", "TrainingGroup", "UpdateStats"]

log = logging.getLogger(__name__)

Correction = Literal["none", "tis", "tapered"]


@dataclass(slots=True)
class Pass:
    """What one pass over an update's groups has gathered.

    ``prox`` holds each completion's proximal log-probs by its number, from the first pass on;
    nothing where there is no second.
    """

    prox: dict[int, Tensor]
    losses: list[Tensor] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


class Trained(Protocol):
    """What a learner needs of a :class:`node.policy.Policy`."""

    model: PreTrainedModel
    device: torch.device
    pad_id: int
    context_length: int
    version: int


class Learner:
    """Updates a policy in place and counts its version up with every optimizer step.

    Args:
        policy: what is trained; nothing else may write its weights meanwhile.
        config: see :class:`LearnerConfig`.
        temperature: of the distribution that completions are sampled from; divides the logits.
        correction: ``"none"`` takes outside rollouts for the policy's own, as published in SAPO
            (arXiv:2509.08721); ``"tis"`` weighs each token by :func:`node.losses.tis_weights`
            where its behaviour log-prob is known; ``"tapered"`` weighs outside rollouts by
            :func:`node.losses.tapered_weights`, as if their author had been certain of them where
            it is unknown.
        decoupled: own rollouts may be of earlier versions, and are weighed by
            :func:`node.losses.decoupled_weights`, whatever the correction of outside ones.
    """

    def __init__(
        self,
        policy: Trained,
        config: LearnerConfig,
        *,
        temperature: float = 1.0,
        correction: Correction = "none",
        decoupled: bool = False,
    ) -> None:
        self._policy = policy
        self._config = config
        self._temperature = temperature
        self._correction = correction
        self._decoupled = decoupled
        self._stale = Stale(config.stale, config.stale_cap)
        self._loss = LOSSES[config.loss]
        self._clip = Clip(config.clip_low, config.clip_high)
        self._sharing = Sharing.of(policy.model) if fits(policy.model) else None
        self._optimizer = Optimizer(
            policy.model.parameters(),
            OptimizerConfig(
                config.lr,
                config.betas,
                config.weight_decay,
                config.max_grad_norm,
                config.warmup_steps,
                config.optimizer,
                config.offload,
            ),
        )
        self._budget = TokenBudget(config.micro_batch_tokens)
        checkpointing = config.gradient_checkpointing
        self._forward = Recomputing(policy.model).forward if checkpointing else nullcontext

    def update(self, groups: Sequence[TrainingGroup]) -> UpdateStats:
        """Train on all of the groups together.

        Groups of equal rewards have no gradient and are not forwarded; their tokens count in the
        loss's denominator all the same. Where no group is informative no step is made. A step
        whose loss or gradient is not finite is refused, and the weights stay as they are.
        Micro-batches are made smaller where memory runs out (:class:`NodeError` where they cannot).
        """
        rows, counts, useful = self._rows(groups)
        if not rows:
            return UpdateStats(lr=self._optimizer.lr)
        try:
            return self._steps(groups, rows, counts, useful)
        finally:
            self._optimizer.discard()  # what an update that failed half-way leaves is nobody's

    def _steps(
        self, groups: Sequence[TrainingGroup], rows: Sequence[Row], counts: Counts, useful: int
    ) -> UpdateStats:
        tally, prox, halved = Tally(), dict[int, Tensor](), self._budget.halved
        lr, steps, refused = self._optimizer.lr, 0, 0
        first: tuple[float, float] | None = None
        for _ in range(self._config.epochs):
            total = self._pass(rows, counts, prox, tally)
            loss, norm = torch.stack([total, self._optimizer.clip().to(total)]).tolist()
            first = first or (loss, norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                refused += 1
                log.error("step refused: loss %s, gradient norm %s; weights untouched", loss, norm)
                break
            lr = self._optimizer.lr
            if ran_out(self._optimizer.step):
                raise no_room_to_step()
            self._policy.version += 1
            steps += 1
        assert first is not None
        outside = [g.rewards for g in groups if not g.own and informative(g.rewards)]
        return tally.stats(
            loss=first[0],
            grad_norm=first[1],
            groups_informative=useful,
            earned=[sum(rewards) / len(rewards) for rewards in outside],
            lr=lr,
            skipped=steps == 0,
            refused=refused,
            halved=self._budget.halved - halved,
        )

    def batches(self, rows: Sequence[Row]) -> tuple[MicroBatch, ...]:
        """Every completion once, with those that share its prompt where that costs less."""
        sharing, budget = self._sharing, self._budget.tokens
        pad_id, device = self._policy.pad_id, self._policy.device
        if sharing is None:
            parts = self._mine([part for row in rows for part in row.parts()])
            return tuple(micro_batches(parts, budget, pad_id, device))
        room = self._room([held_tokens(1, row, sharing.mask_weight) for row in rows])
        parts = self._mine([part for row in rows for part in sharing.rows(row, room)])
        return tuple(micro_batches(parts, budget, pad_id, device, sharing.mask_weight))

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and version; the weights themselves belong to the policy."""
        return {"optimizer": self._optimizer.state_dict(), "version": self._policy.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`, taken at the same moment as the policy's weights."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._policy.version = int(state["version"])

    def _room(self, held: Sequence[float]) -> float:
        """The most that a row may hold uncut, where an update's rows hold so much."""
        return self._budget.tokens

    def _mine(self, parts: list[Row]) -> list[Row]:
        """Those of an update's rows that are read here; alone, all."""
        return parts

    def _rows(self, groups: Sequence[TrainingGroup]) -> tuple[list[Row], Counts, int]:
        rows: list[Row] = []
        tokens = completions = useful = first = 0
        for group in groups:
            room = self._policy.context_length - len(group.prompt_ids)
            cap = max(0, min(self._config.max_completion_tokens, room))
            done = [completion.first(cap) for completion in group.completions]
            tokens += sum(sum(completion.trained) for completion in done)
            completions += len(done)
            if not informative(group.rewards):
                continue
            useful += 1
            advantages = group_advantages(group.rewards, self._config.normalise_std)
            values = (0.0,) * len(done) if group.own else worth(done, group.rewards)
            columns = zip(done, advantages, values, strict=True)
            if kept := [each for each in columns if any(each[0].trained)]:
                kept_done, kept_advantages, kept_values = zip(*kept, strict=True)
                row = Row(
                    group.prompt_ids, kept_done, kept_advantages, group.own, kept_values, first
                )
                rows.append(row)
                first += len(kept)
        return rows, Counts(tokens, completions, self._config.max_completion_tokens), useful

    def _pass(
        self, rows: Sequence[Row], counts: Counts, prox: dict[int, Tensor], tally: Tally
    ) -> Tensor:
        """Add the gradient of all rows, from the beginning again whenever memory runs out.

        Returns:
            The loss, a scalar.
        """
        while True:
            done = Pass(dict(prox))
            for batch in self.batches(rows):
                if ran_out(partial(self._backward, batch, counts, done)):
                    break
            else:
                prox.update(done.prox)
                tally.add(done.tally)
                return torch.stack(done.losses).sum()
            self._optimizer.discard()
            self._budget.halve(batch)

    def _backward(self, batch: MicroBatch, counts: Counts, done: Pass) -> None:
        """Add one micro-batch's gradient; the first pass's log-probs become ``prox``."""
        with self._forward():
            distribution = distributions(self._policy.model, batch, self._temperature)
        cur = token_logprobs(distribution, batch)
        if batch.numbers[0] in done.prox:
            lines = [done.prox[number][: cur.shape[1]] for number in batch.numbers]
            frozen = pad_sequence(lines, batch_first=True)
        else:
            entropies = token_entropies(distribution, batch)
            done.tally.add_behaviour(cur.detach(), entropies, batch, self._policy.version)
            frozen = self._prox(cur.detach(), batch)
            if self._config.epochs > 1:
                done.prox.update(zip(batch.numbers, frozen, strict=True))
        weights = self._weights(frozen, batch)
        terms = Terms(cur, frozen, batch.advantages, batch.mask, weights)
        loss = self._loss(terms, counts, self._clip)
        self._optimizer.backward(loss)
        done.tally.add_bounded(cur.detach() - frozen, self._clip, weights, batch)
        done.losses.append(loss.detach())

    def _prox(self, cur: Tensor, batch: MicroBatch) -> Tensor:
        """Proximal log-probs ``[C, T]``; ``cur`` are the policy's as the update begins."""
        if not self._decoupled or self._config.prox == "start":
            return cur
        told = interpolated_prox(cur, batch.behaviour, batch.versions, self._policy.version)
        return torch.where(batch.own & batch.known & (batch.versions >= 0), told, cur)

    def _weights(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        weights = self._corrections(prox, batch)
        if not self._decoupled:
            return weights
        own = batch.mask & batch.own & batch.known
        stale = decoupled_weights(prox, batch.behaviour, own, self._stale)
        return torch.where(own, stale, weights)

    def _corrections(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        if self._correction == "none":
            return torch.ones_like(prox)
        if self._correction == "tapered":
            outside = batch.mask & ~batch.own
            return tapered_weights(prox, batch.behaviour, outside, batch.advantages)
        return tis_weights(prox, batch.behaviour, batch.mask & batch.known, self._config.tis_cap)


def worth(completions: Sequence[TrainingCompletion], rewards: Sequence[float]) -> tuple[float, ...]:
    """A group's rewards, each counted once where a completion occurs several times."""
    seen: set[tuple[int, ...]] = set()
    values = []
    for completion, reward in zip(completions, rewards, strict=True):
        values.append(0.0 if completion.ids in seen else reward)
        seen.add(completion.ids)
    return tuple(values)
