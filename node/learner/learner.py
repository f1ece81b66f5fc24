"""Policy updates on local and peers' groups, and gradient checkpointing."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from node.config.learning import LearnerSection
from node.config.registry import ADVANTAGES, CORRECTIONS, LOSSES
from node.errors import ConfigError, NodeError
from node.learner.batches import (
    MicroBatch,
    Row,
    TrainingGroup,
    held_tokens,
    lie_well,
    micro_batch,
    micro_batches,
)
from node.learner.gradient_bound import BoundedGradient, Factors, Measured
from node.learner.group_gradients import GroupGradients
from node.learner.group_norms import GroupNorms
from node.learner.logprobs import TokenScores
from node.learner.losses import Clip, Loss, Terms
from node.learner.micro_batching import RowCost, TokenBudget, UpdateShare, ran_out
from node.learner.off_policy import Span, Weighting, check_versions, plausibility, usefulness
from node.learner.optimizer import Optimizer
from node.learner.peer_bound import LocalGain, PeerBound
from node.learner.steps import (
    Newest,
    StepFigures,
    Trained,
    by_local_group,
    logprob_mismatch,
    newest_rows,
    rows_of,
    steps_of,
    tells,
    with_figures,
)
from node.learner.update_stats import UpdateStats, UpdateSums
from swarm.groups import informative

log = logging.getLogger(__name__)


class GradientCheckpointing:
    """Gradient checkpointing (arXiv:1604.06174) of decoder layers, or ConfigError."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not (self._layers and model.supports_gradient_checkpointing):
            raise ConfigError(
                "learner.gradient_checkpointing",
                True,
                f"transformers' {type(model).__name__} does not support it: set it to false.",
            )

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Recompute layers in the block; outside it they keep caches for sampling."""
        # The library's switch requires training mode, in which some layers use dropout.
        for layer in self._layers:
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward  # restores the class's method


@dataclass(slots=True)
class Pass:
    """Results of one pass over an update's groups.

    ``frozen`` holds by completion number the proximal log-probs and entropies, ``[T, 2]``, of the
    first of several passes. ``factors`` scale the completions' gradients. ``apart`` records the
    groups' gradients, ``norms`` measures them.
    """

    frozen: dict[int, Tensor]
    factors: Factors | None = None
    apart: GroupGradients | None = None
    norms: GroupNorms | None = None
    losses: list[Tensor] = field(default_factory=list)
    tally: UpdateSums = field(default_factory=UpdateSums)


class Learner:
    """In-place updates of a policy; every optimizer step increments its version.

    Nothing else may write the policy's weights during an update. ``share`` is the part of an update
    that this process computes; for the others see :class:`node.learner.steps.Choices`.
    """

    def __init__(
        self,
        policy: Trained,
        config: LearnerSection,
        share: UpdateShare | None = None,
        *,
        temperature: float = 1.0,
        correction: str = "none",
        correction_options: Mapping[str, Any] = MappingProxyType({}),
        decoupled: bool = False,
        floor: bool = False,
        peer_ratio: float = 0.0,
    ) -> None:
        self._policy = policy
        self._config = config
        corrector = CORRECTIONS.open(correction, correction_options)
        self._reads = corrector.reads
        self._weighting = Weighting(config, corrector, decoupled=decoupled, floor=floor)
        clip = Clip(config.clip_low, config.clip_high)
        self._loss: Loss = LOSSES.open(config.loss, config.loss_options, clip)
        self._advantage = ADVANTAGES.open(config.advantage, config.advantage_options)
        self.optimizer = Optimizer(policy.model.parameters(), config)
        self._share = share or UpdateShare()
        self._span = Span(policy.version, config.epochs)
        self._peer_ratio, self._gain = peer_ratio, LocalGain()
        self._budget = TokenBudget(config.micro_batch_tokens)
        checkpointing = config.gradient_checkpointing and GradientCheckpointing(policy.model)
        self._forward = checkpointing.forward if checkpointing else nullcontext
        self.gradient = BoundedGradient(
            policy.model, self, self._share.sum, by_use=corrector.by_use
        )
        # Last, because after a forward pass an FSDP model shows other weights.
        self.sharing = RowCost.of(policy.model)
        self._scores = TokenScores(policy.model, temperature, config.micro_batch_tokens)

    def update(self, groups: Sequence[TrainingGroup], newest: Newest = tuple) -> UpdateStats:
        """Train on all groups together, in one or several steps.

        Groups of equal rewards have no forward pass, but count in the mean over groups. No step is
        made if no group is informative, or if the gradient is zero because no peer's group is
        useful. A step whose loss or gradient is not finite is refused; the weights stay unchanged.
        Micro-batches become smaller if memory runs out. ``newest`` is called if the groups do not
        show the train-inference mismatch: see :mod:`node.learner.steps`. Raises NodeError:
        micro-batches cannot become smaller; ValueError: a token's version is above the policy's;
        nothing is changed.
        """
        check_versions(groups, self._policy.version)
        rows = self.rows(groups)
        if not rows:
            zeros = (0.0,) * sum(not group.local for group in groups)
            return UpdateStats(lr=self.optimizer.lr, useful=zeros)
        try:
            return self._steps(groups, rows, newest)
        finally:
            self.optimizer.discard()  # a failed update leaves a partial gradient

    def _steps(
        self, groups: Sequence[TrainingGroup], rows: Sequence[Row], newest: Newest
    ) -> UpdateStats:
        tally, frozen, halvings = UpdateSums(), dict[int, Tensor](), self._budget.halved
        lr, num_steps, num_refused = self.optimizer.lr, 0, 0
        mismatch: float | None = None
        useful = sum(informative(group.rewards) for group in groups)
        steps = steps_of(rows, useful, self._config.groups_per_step)
        self._span = Span(self._policy.version, self._config.epochs * len(steps))
        self._weighting = replace(self._weighting, bound=PeerBound.of(self._peer_ratio, self._gain))
        figures: list[StepFigures] = []
        for number, step in enumerate(self._config.epochs * steps):
            total, influence = self.gradient.add(step.rows, frozen, tally, step.groups)
            loss, norm = torch.stack([total, self.optimizer.clip().to(total)]).tolist()
            if number < len(steps):
                figures.append(StepFigures(step.weight, loss, norm, influence))
            if not (math.isfinite(loss) and math.isfinite(norm)):
                num_refused += 1
                log.error("step skipped: loss %s, gradient norm %s; weights unchanged", loss, norm)
                break
            if not norm:
                continue  # a step would follow the momentum of earlier ones
            if not num_steps:
                mismatch = self._gap_beside(step.rows, newest)
            lr = self._step()
            num_steps += 1
        self._gain.add(*tally.gained())
        by_group, read = usefulness(rows, tally.plausible()), Counter[int]()
        for row in rows:
            read[row.group] += row.length
        return replace(
            with_figures(tally.stats(mismatch), figures),
            groups_informative=useful,
            useful=tuple(by_group.get(n, 0.0) for n, g in enumerate(groups) if not g.local),
            tokens_read=tuple(read[number] for number in range(len(groups))),
            entropies=by_local_group(tally.entropies(), groups, rows),
            lr=lr,
            skipped=num_steps == 0,
            refused=num_refused,
            halved=self._budget.halved - halvings,
        )

    def _step(self) -> float:
        lr = self.optimizer.lr
        if ran_out(self.optimizer.step):
            raise NodeError(
                "memory ran out in the optimizer's step",
                "it keeps two values for each trained weight, and a float32 copy of weights in "
                "half precision",
                "Set learner.optimizer = 'adamw8bit', learner.offload = true or "
                "policy.lora_rank = 16. If an engine is on the same GPU, set engine.sleep_mode "
                "= true or decrease engine.gpu_memory_utilization.",
            )
        self._policy.version += 1
        return lr

    def _gap_beside(self, rows: Sequence[Row], newest: Newest) -> float | None:
        policy = self._policy
        if any(tells(row, policy.version) for row in rows):
            return None
        groups = self._share.gather(newest())[0]
        extra_rows = newest_rows(groups, policy, self._config.max_completion_tokens)
        return logprob_mismatch(policy, extra_rows, self._scores, self._budget.tokens)

    def rows(self, groups: Sequence[TrainingGroup]) -> list[Row]:
        """Return an update's rows: one per group that has anything to learn from."""
        return rows_of(
            groups,
            self._loss,
            self._advantage,
            self._reads,
            longest=self._config.max_completion_tokens,
            context_length=self._policy.context_length,
        )

    def batches(self, rows: Sequence[Row]) -> tuple[MicroBatch, ...]:
        """Return each completion once, sharing its prompt if that costs less."""
        sharing, budget, policy = self.sharing, self._budget.tokens, self._policy
        sizes = [held_tokens([row], sharing.mask_weight) for row in rows]
        max_size = self._share.room(self._budget, sizes)
        parts = self._share.rows([part for row in rows for part in sharing.rows(row, max_size)])
        limits = (sharing.mask_weight, sharing.padding)
        return tuple(micro_batches(parts, budget, policy.pad_id, policy.device, *limits))

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer state and version; the weights belong to the policy."""
        gain = [self._gain.total, self._gain.tokens]
        optimizer = self.optimizer.state_dict()
        return {"optimizer": optimizer, "version": self._policy.version, "gain": gain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict` from the same moment as the policy's weights."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._policy.version = int(state["version"])
        self._gain = LocalGain(*state["gain"])

    def add(
        self,
        rows: Sequence[Row],
        frozen: dict[int, Tensor],
        tally: UpdateSums,
        *,
        factors: Factors | None = None,
        apart: GroupGradients | None = None,
    ) -> Tensor:
        """Add the gradient of rows, each of a whole group, and return their loss.

        It starts again when memory runs out.
        """
        while True:
            result, batches = Pass(dict(frozen), factors, apart), self.batches(rows)
            num_idle = max(self._share.gather(len(batches))) - len(batches)
            for batch in batches:
                if ran_out(partial(self.backward, batch, result)):
                    break
            else:
                for _ in range(num_idle):
                    self._idle()
                return self._collect(result, frozen, tally)
            self.optimizer.discard()
            if apart:
                apart.clear()
            self._share.cut(self._budget, batch)

    def add_measured(
        self,
        rows: Sequence[Row],
        frozen: dict[int, Tensor],
        tally: UpdateSums,
        *,
        factors: Factors,
        norms: GroupNorms,
    ) -> Measured | None:
        """Do the same in one micro-batch; if memory runs out, lower the budget, return None."""
        result, share = Pass(dict(frozen), factors, norms=norms), self._share.whole(rows)[0]
        complete, local = True, dict[int, float]()
        if share:
            batch = micro_batch(self._whole_parts(share), self._policy.pad_id, self._policy.device)
            if ran_out(partial(self.backward, batch, result)):
                self.optimizer.discard()
                self._share.cut(self._budget, batch)
                return None
            local = dict(zip([row.group for row in share], norms.norms(), strict=True))
            complete = norms.complete()
        else:
            self._idle()
        loss, reports = self._collect(result, frozen, tally), self._share.gather((local, complete))
        by_group = {group: norm for each, _ in reports for group, norm in each.items()}
        return Measured(loss, by_group, all(is_complete for _, is_complete in reports))

    def rows_in_batch(self, rows: Sequence[Row]) -> int:
        """Return how many rows, from the first on, one micro-batch can hold; at least 1.

        With several processes, each has a micro-batch of its own at the same time.
        """
        for count in range(2, len(rows) + 1):
            if not all(map(self._fit_one_batch, self._share.whole(rows[:count]))):
                return count - 1
        return len(rows)

    def _fit_one_batch(self, rows: Sequence[Row]) -> bool:
        """Return whether one micro-batch can hold these rows."""
        sharing, parts = self.sharing, self._whole_parts(rows)
        limits = (sharing.mask_weight, sharing.padding)
        return not parts or lie_well(parts, self._budget.tokens, *limits)

    def _whole_parts(self, rows: Sequence[Row]) -> list[Row]:
        return [part for row in rows for part in self.sharing.rows(row, self._budget.tokens)]

    def may_hold(self, rows: Sequence[Row]) -> bool:
        """Return whether memory allows to hold the gradients of all groups."""
        if self._config.gradient_checkpointing or self._config.offload:
            return False
        return not self._scores.in_parts(sum(row.length for row in rows))

    def _collect(self, result: Pass, frozen: dict[int, Tensor], tally: UpdateSums) -> Tensor:
        """Add what a pass of all processes shows; return its loss."""
        if self._config.epochs > 1:  # another process may read a completion the next time
            new = {number: line for number, line in result.frozen.items() if number not in frozen}
            for entries in self._share.gather(new):
                frozen.update({n: line.to(self._policy.device) for n, line in entries.items()})
        tally.add(self._share.tally(result.tally))
        losses = result.losses or [torch.zeros((), device=self._policy.device)]
        return self._share.sum(torch.stack(losses).sum())

    def _idle(self) -> None:
        ids = torch.full((1, 1), self._policy.pad_id, device=self._policy.device)
        with self._forward():
            logits = self._policy.model(input_ids=ids, use_cache=False).logits
        self.optimizer.backward(logits.float().sum() * 0.0)

    def backward(self, batch: MicroBatch, done: Pass) -> None:
        """Add a micro-batch's gradient, and what it shows to ``done``; no step.

        On a GPU this only launches work and waits for none, unless ``done.factors`` are needed.
        """
        if done.apart:
            done.apart.reads(batch.groups, batch.input_ids.device)
        if done.norms:
            done.norms.reads(batch)
        with self._forward():
            is_first = batch.numbers[0] not in done.frozen
            whole = done.apart is not None
            cur, entropies = self._scores(batch, entropies=is_first, whole=whole, norms=done.norms)
        if entropies is None:
            lines = [done.frozen[number][: cur.shape[1]] for number in batch.numbers]
            prox, entropies = pad_sequence(lines, batch_first=True).unbind(-1)
        else:
            done.tally.add_behaviour(cur.detach(), entropies, batch, self._policy.version)
            prox = self._weighting.prox(cur.detach(), batch, self._span)
            done.tally.add_unlikely(self._weighting.unlikely(prox, batch))
            if self._config.epochs > 1:
                stacked = torch.stack([prox, entropies], -1)
                done.frozen.update(zip(batch.numbers, stacked, strict=True))
        reached = self._weighting.bound.reached(prox, batch)
        if is_first:
            done.tally.add_reference(reached, prox, batch)
        done.tally.add_plausible(plausibility(prox, entropies), batch)
        if done.factors:
            factors = done.factors(done.tally)
            scale = cur.new_tensor([factors.get(number, 1.0) for number in batch.numbers])
            cur.register_hook(partial(torch.mul, scale[:, None]))  # type: ignore[no-untyped-call]
        weights = self._weighting.weights(prox, entropies, batch, reached)
        terms = Terms(cur, prox, batch.advantages, batch.mask, weights, batch.shares)
        loss = self._loss(terms)
        self.optimizer.backward(loss)
        done.tally.add_bounded(self._loss, terms)
        done.losses.append(loss.detach())
