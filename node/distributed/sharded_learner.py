"""Learner over several ranks: sharded weights and optimizer, divided groups."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_layers import GradientCheckpointingLayer

from node.config.learning import LearnerSection
from node.distributed.ranks import Order, Ranks
from node.errors import NodeError
from node.learner.batches import MicroBatch, Row, TrainingGroup
from node.learner.learner import Learner
from node.learner.micro_batching import TokenBudget, UpdateShare
from node.learner.off_policy import check_versions
from node.learner.steps import Choices, Newest
from node.learner.update_stats import UpdateStats, UpdateSums
from node.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Outline:
    """Description of rank 0's policy for other ranks; weights are sent separately."""

    config: PreTrainedConfig
    dtype: torch.dtype
    device: str
    pad_id: int
    context_length: int
    version: int

    @classmethod
    def of(cls, policy: Policy) -> Outline:
        model = policy.model
        config, device, pad_id = copy.deepcopy(model.config), policy.device.type, policy.pad_id
        return cls(config, model.dtype, device, pad_id, policy.context_length, policy.version)


@dataclass(slots=True)
class Replica:
    """Fields of a policy that a learner needs, with sharded weights."""

    model: PreTrainedModel
    device: torch.device
    pad_id: int
    context_length: int
    version: int


def sharded(outline: Outline, mesh: DeviceMesh) -> PreTrainedModel:
    """Build the model with uninitialized weights, sharded layer by layer.

    Gradients are summed over ranks in float32; losses are divided by the whole update's counts.
    """
    with no_init_weights():
        model: PreTrainedModel = cast(Any, AutoModelForCausalLM).from_config(
            outline.config, dtype=outline.dtype, trust_remote_code=False
        )
    model.tie_weights()
    model.train(False)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, model):
        shard: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=policy)
        shard.set_gradient_divide_factor(1.0)
        # The alternative scales within the reduction, which only NCCL supports.
        shard.set_force_sum_reduction_for_comms(True)
    return model


T = TypeVar("T")

BEGIN = "begin"
MOST_SHARES = 1.5  # Maximum row in even shares of the ranks; less would split similar rows.


class RankShare(UpdateShare):
    """Rows that are assigned to one rank."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def room(self, budget: TokenBudget, held: Sequence[float]) -> float:
        """Limit the size of rows, so that every rank gets some."""
        return min(budget.tokens, MOST_SHARES * sum(held) / self._ranks.world)

    def cut(self, budget: TokenBudget, batch: MicroBatch) -> None:
        """Raise an error: a rank that stops within a layer leaves the others waiting."""
        raise NodeError(
            "memory ran out in a micro-batch, and several ranks cannot split it during an update",
            f"{len(batch.mask)} completions, {batch.input_ids.numel()} tokens",
            "Decrease learner.micro_batch_tokens, or, for a single completion, "
            "learner.max_completion_tokens, or set learner.gradient_checkpointing = true.",
        )

    def rows(self, rows: list[Row]) -> list[Row]:
        return dealt(rows, self._ranks.world)[self._ranks.rank]

    def whole(self, rows: Sequence[Row]) -> list[list[Row]]:
        shares, rank = dealt(rows, self._ranks.world), self._ranks.rank
        return shares[rank:] + shares[:rank]

    def sum(self, value: Tensor) -> Tensor:
        return self._ranks.sum(value)

    def gather(self, value: T) -> list[T]:
        return self._ranks.gather(tree_map_only(Tensor, Tensor.cpu, value))

    def tally(self, tally: UpdateSums) -> UpdateSums:
        total = UpdateSums()
        for sums in self._ranks.gather(tally.on("cpu")):
            total.add(sums)
        return total


class ShardedLearner(Learner):
    """One rank's part of a learner; on rank 0 it works like a :class:`Learner`.

    Every rank reads some of an update's rows and holds some rows of each weight. Rank 0 also keeps
    the policy's own model (``whole``), for engines and checkpoints, and copies the new weights into
    it. Other ranks repeat rank 0's calls in :func:`follow`.
    """

    def __init__(
        self,
        ranks: Ranks,
        outline: Outline,
        config: LearnerSection,
        choices: Choices,
        whole: Policy | None = None,
    ) -> None:
        self._ranks = ranks
        self._whole = whole
        with ranks.carrying_out(Order(BEGIN, (outline, config, choices))):
            device, self._mesh = ranks.mesh(outline.device)
            model, context = sharded(outline, self._mesh), outline.context_length
            self._replica = Replica(model, device, outline.pad_id, context, outline.version)
            self._spread()
            super().__init__(self._replica, config, RankShare(ranks), **choices)
            self._reshard()

    def update(self, groups: Sequence[TrainingGroup], newest: Newest = tuple) -> UpdateStats:
        """Update as with one rank; every rank returns the whole update's figures.

        A NodeError ends all ranks; after a ValueError they continue.
        """
        check_versions(groups, self._replica.version)
        with self._ranks.carrying_out(Order("update", (groups,))):
            version = self._replica.version
            stats = super().update(groups, newest)
            if self._replica.version != version:
                self._gather()
            return stats

    def state_dict(self) -> dict[str, Any]:
        """Return the state of one rank in rank 0's main memory; elsewhere no tensors."""
        with self._ranks.carrying_out(Order("state_dict")):
            return dict(tree_map_only(DTensor, self._collected, super().state_dict()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of one or several ranks; all ranks take rank 0's weights."""
        outline = tree_map_only(Tensor, lambda each: each.to("meta") if each.dim() else each, state)
        with self._ranks.carrying_out(Order("load_state_dict", (outline,))):
            self._spread()
            super().load_state_dict(tree_map_only(Tensor, self._spread_out, state))
            if self._whole:
                self._whole.version = self._replica.version

    def _gap_beside(self, rows: Sequence[Row], newest: Newest) -> float | None:
        mismatch = super()._gap_beside(rows, newest)
        self._reshard()
        return mismatch

    def _reshard(self) -> None:
        """Release the outermost weights, which a forward pass leaves gathered."""
        cast(FSDPModule, self._replica.model).reshard()

    @torch.no_grad()
    def _spread(self) -> None:
        for local, source in self._pairs(Module.parameters):
            like = torch.empty(local.shape, dtype=local.dtype, device="meta")
            local.copy_(self._ranks.spread(like if source is None else source, self._mesh))
        for local, source in self._pairs(Module.buffers):
            dist.broadcast(local if source is None else local.copy_(source), 0)

    @torch.no_grad()
    def _gather(self) -> None:
        for local, target in self._pairs(Module.parameters):
            full = self._ranks.collect(local)
            if target is not None and full is not None:
                target.copy_(full)
        if self._whole:
            self._whole.version = self._replica.version

    def _pairs(
        self, tensors: Callable[[Module], Iterable[Tensor]]
    ) -> Iterable[tuple[Any, Tensor | None]]:
        local = list(tensors(self._replica.model))
        full = list(tensors(self._whole.model)) if self._whole else [None] * len(local)
        return zip(local, full, strict=True)

    def _collected(self, value: DTensor) -> Tensor | None:
        full = self._ranks.collect(value)
        return None if full is None else full.cpu()

    def _spread_out(self, value: Tensor) -> Tensor:
        return self._ranks.spread(value, self._mesh) if value.dim() else value


def open_learner(
    policy: Policy, config: LearnerSection, ranks: Ranks | None, **choices: Unpack[Choices]
) -> Learner:
    """Create a node's learner, divided over ranks if there are several."""
    if ranks is None:
        return Learner(policy, config, **choices)
    return ShardedLearner(ranks, Outline.of(policy), config, choices, policy)


def follow(ranks: Ranks) -> None:
    """Repeat the calls of rank 0's learner until rank 0 ends."""
    learner: ShardedLearner | None = None
    while (order := ranks.take()) is not None:
        if learner is None or order.name == BEGIN:
            learner = ShardedLearner(ranks, *order.arguments)
        else:
            getattr(learner, order.name)(*order.arguments)


def dealt(rows: Sequence[Row], ranks: int) -> list[list[Row]]:
    """Assign rows to ranks: the longest first, each to the rank with fewest tokens."""
    tokens: list[int] = [0] * ranks
    shares: list[list[Row]] = [[] for _ in range(ranks)]
    for row in sorted(rows, key=lambda row: row.length, reverse=True):
        rank = tokens.index(min(tokens))
        tokens[rank] += row.length
        shares[rank].append(row)
    return shares
