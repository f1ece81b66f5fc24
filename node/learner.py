"""One policy update on a mixture of own and outside groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from node.advantages import group_advantages, informative
from node.batches import MicroBatch, Row, TrainingCompletion, TrainingGroup, micro_batches
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
from node.policy import Policy
from node.sharing import Sharing, fits
from node.update_stats import Tally, UpdateStats

__all__ = ["Learner", "LearnerConfig", "TrainingCompletion", "TrainingGroup", "UpdateStats"]

log = logging.getLogger(__name__)

Correction = Literal["none", "tis", "tapered"]


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """How the policy is updated.

    Attributes:
        loss: a function of :mod:`node.losses`.
        clip_low: the ratio's lower bound is ``1 - clip_low``.
        clip_high: its upper bound is ``1 + clip_high``.
        lr: AdamW's learning rate once warm.
        betas: AdamW's decay of the two moments.
        weight_decay: decoupled, times the learning rate a step.
        epochs: optimizer steps an update, each on all of its groups.
        micro_batch_tokens: :func:`node.batches.held_tokens` of one forward pass.
        max_completion_tokens: what is longer is trained on up to here.
        max_grad_norm: the gradient's L2 norm is scaled down to this.
        warmup_steps: optimizer steps until the learning rate is reached, linearly.
        normalise_std: divide a group's advantages by its rewards' standard deviation.
        tis_cap: bound of a truncated importance weight.
        stale: of :class:`node.losses.Stale`, for own tokens of earlier versions.
        stale_cap: likewise.
        prox: what own stale tokens take for the proximal policy: the one that the update begins
            with (``"start"``), or :func:`node.losses.interpolated_prox` (``"versions"``).
    """

    loss: Literal["grpo", "dr_grpo", "gspo", "cispo"] = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    epochs: int = 1
    micro_batch_tokens: int = 8192
    max_completion_tokens: int = 4096
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    normalise_std: bool = True
    tis_cap: float = 2.0
    stale: Literal["mask_tokens", "mask_sequences", "clamp"] = "mask_tokens"
    stale_cap: float = 5.0
    prox: Literal["start", "versions"] = "start"


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
        policy: Policy,
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
            ),
        )

    def update(self, groups: Sequence[TrainingGroup]) -> UpdateStats:
        """Train on all of the groups together.

        Groups of equal rewards have no gradient and are not forwarded; their tokens count in the
        loss's denominator all the same. Where no group is informative no step is made. A step
        whose loss or gradient is not finite is refused, and the weights stay as they are.
        """
        rows, counts, useful = self._rows(groups)
        if not rows:
            return UpdateStats(lr=self._optimizer.lr)
        config, policy = self._config, self._policy
        batches = self.batches(rows)
        tally = Tally()
        prox: list[Tensor] = []
        lr, steps, refused = self._optimizer.lr, 0, 0
        first: tuple[float, float] | None = None
        for _ in range(config.epochs):
            losses = [self._backward(i, b, prox, counts, tally) for i, b in enumerate(batches)]
            loss, norm = torch.stack([torch.stack(losses).sum(), self._optimizer.clip()]).tolist()
            first = first or (loss, norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._optimizer.discard()
                refused += 1
                log.error("step refused: loss %s, gradient norm %s; weights untouched", loss, norm)
                break
            lr = self._optimizer.lr
            self._optimizer.step()
            policy.version += 1
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
        )

    def batches(self, rows: Sequence[Row]) -> tuple[MicroBatch, ...]:
        """Every completion once, with those that share its prompt where that costs less."""
        sharing, budget = self._sharing, self._config.micro_batch_tokens
        pad_id, device = self._policy.pad_id, self._policy.device
        if sharing is None:
            parts = [part for row in rows for part in row.parts()]
            return tuple(micro_batches(parts, budget, pad_id, device))
        parts = [part for row in rows for part in sharing.rows(row, budget)]
        return tuple(micro_batches(parts, budget, pad_id, device, sharing.mask_weight))

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and version; the weights themselves belong to the policy."""
        return {"optimizer": self._optimizer.state_dict(), "version": self._policy.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`, taken at the same moment as the policy's weights."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._policy.version = int(state["version"])

    def _rows(self, groups: Sequence[TrainingGroup]) -> tuple[list[Row], Counts, int]:
        rows: list[Row] = []
        tokens = completions = useful = 0
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
                row = Row(group.prompt_ids, kept_done, kept_advantages, group.own, kept_values)
                rows.append(row)
        return rows, Counts(tokens, completions, self._config.max_completion_tokens), useful

    def _backward(
        self, index: int, batch: MicroBatch, prox: list[Tensor], counts: Counts, tally: Tally
    ) -> Tensor:
        """Add one micro-batch's gradient; the first epoch's log-probs become ``prox``."""
        distribution = distributions(self._policy.model, batch, self._temperature)
        cur = token_logprobs(distribution, batch)
        if index == len(prox):
            entropies = token_entropies(distribution, batch)
            tally.add_behaviour(cur.detach(), entropies, batch, self._policy.version)
            prox.append(self._prox(cur.detach(), batch))
        frozen = prox[index]
        weights = self._weights(frozen, batch)
        terms = Terms(cur, frozen, batch.advantages, batch.mask, weights)
        loss = self._loss(terms, counts, self._clip)
        self._optimizer.backward(loss)
        tally.add_bounded(cur.detach() - frozen, self._clip, weights, batch)
        return loss.detach()

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
