"""Micro-batch sizes: token budget, shared prompt rows and out-of-memory handling."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from node.errors import NodeError
from node.learner.batches import MicroBatch, Row, held_tokens
from node.learner.update_stats import UpdateSums
from node.policy.device import give_back
from node.policy.fast_layers import UnpackedAttention, UnpackingProbe
from swarm.common.util import counted

log = logging.getLogger(__name__)

MESSAGES = (
    "DefaultCPUAllocator",
    "not enough memory",
    "MPS backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "HIP error: out of memory",
)  # out-of-memory messages for which torch has no exception class


def of_memory(error: Exception) -> bool:
    """Return whether memory ran out, in torch or on a device that only says so in words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in MESSAGES)


def ran_out(work: Callable[[], object]) -> bool:
    """Run ``work`` and return whether it ran out of memory; release what it held."""
    try:
        work()
    except RuntimeError as error:
        if of_memory(error):
            return True
        raise
    return False


class TokenBudget:
    """Maximum :func:`~node.learner.batches.held_tokens` of a micro-batch."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.halved = 0

    def halve(self, batch: MicroBatch) -> None:
        """Lower the budget so that ``batch`` is split; NodeError for a single completion."""
        count, length = len(batch.mask), batch.input_ids.shape[1]
        if count == 1:
            raise NodeError(
                "memory ran out with a single completion in a micro-batch",
                f"{counted(length, 'token')}, prompt included",
                "learner.micro_batch_tokens has no effect here: decrease "
                "learner.max_completion_tokens and engine.max_new_tokens, or set "
                "learner.gradient_checkpointing = true.",
            )
        previous, self.tokens = self.tokens, min(self.tokens, batch.input_ids.numel()) // 2
        self.halved += 1
        give_back(batch.input_ids.device)
        log.warning(
            "memory ran out in a micro-batch of %d completions: learner.micro_batch_tokens is "
            "reduced from %d to %d until the next start, and the pass is repeated",
            count,
            previous,
            self.tokens,
        )


class NoCache(Cache):
    """A cache that keeps nothing.

    Without a cache the library looks whether positions are those of packed rows, for which the host
    waits for a GPU.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


def takes_no_cache(model: PreTrainedModel) -> bool:
    """Return whether a cache that keeps nothing changes no output: plain or windowed attention."""
    return (
        model._supports_attention_backend
        and not model._is_stateful
        and model.config.get_text_config()._attn_implementation in ("sdpa", "eager")
    )


STEADY_ROTATIONS = ("default", "linear", "llama3", "yarn")  # do not depend on the length


def reads_shared_rows(model: PreTrainedModel) -> bool:
    """Return whether completions in a shared row get the same output as alone.

    Every layer must be plain causal attention with a four-dimensional mask and explicit positions.
    This excludes windows, state-space layers, flash attention and length-dependent rotations.
    """
    config = model.config.get_text_config()
    rotation = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    layers = getattr(config, "layer_types", None) or ("full_attention",)
    return (
        takes_no_cache(model)
        and getattr(config, "sliding_window", None) is None
        and all(layer == "full_attention" for layer in layers)
        and rotation.get("rope_type") in STEADY_ROTATIONS
        and "position_ids" in inspect.signature(model.forward).parameters
    )


@torch.no_grad()
def takes_unpacking(model: PreTrainedModel) -> bool:
    """Return whether attention in all layers of a model that shares rows can be unpacked."""
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa":
        return False
    UnpackedAttention.install()
    probe, ids = UnpackingProbe(), torch.zeros((1, 2), dtype=torch.int64, device=model.device)
    model(input_ids=ids, use_cache=False, past_key_values=NoCache(), unpacking=probe)
    return probe.layers == int(config.num_hidden_layers)


# Multiplications of a forward pass that take as long as the fixed cost of a pass: some 20 ms.
PASS_WORK_ON_CPU, PASS_WORK_ON_GPU, LEAST_PADDING = 1e9, 2.5e11, 64  # the last in tokens
UNPACKING_WORK = 0.25  # of copies in all layers, relative to that; from SmolLM2-135M on a CPU


@dataclass(frozen=True, slots=True)
class RowCost:
    """Cost of a row, estimated in multiplications of a forward pass.

    A shared row saves copies of the prompt. With a mask it pays for the square of its tokens;
    unpacked for each padded sequence's square, of which kernels skip little, and for copies.
    ``matrices`` is for one token, ``pair`` for its attention to another in all layers.
    ``mask_weight`` overestimates the memory of one mask element relative to a token's activations.
    Without ``shares``, each completion has its own copy of the prompt.
    """

    matrices: int
    pair: int
    mask_weight: float
    padding: float = math.inf  # tokens that take about as long as the fixed cost of a pass
    shares: bool = True
    unpacking: float = math.inf  # multiplications that copies take as long as; inf: impossible

    @classmethod
    def of(cls, model: PreTrainedModel) -> RowCost:
        """Return a model's costs; it shares no rows unless it :func:`reads_shared_rows`."""
        if not reads_shared_rows(model):
            return SEPARATE
        config = model.config.get_text_config()
        heads, hidden = config.num_attention_heads, config.hidden_size
        size = getattr(config, "head_dim", None) or hidden // heads
        layers = config.num_hidden_layers
        matrices = model.num_parameters(exclude_embeddings=True)
        work = PASS_WORK_ON_CPU if model.device.type == "cpu" else PASS_WORK_ON_GPU
        return cls(
            matrices,
            pair=2 * layers * heads * size,
            mask_weight=1.0 / (layers * hidden),
            padding=max(LEAST_PADDING, work / matrices),
            unpacking=UNPACKING_WORK * work if takes_unpacking(model) else math.inf,
        )

    def cost(self, row: Row) -> float:
        """Return the multiplications for the row."""
        length, extra = row.length, 0.0
        pairs = length * length if row.shared else length * length / 2
        if row.unpacked:
            pairs, extra = len(row.completions) * row.longest**2, self.unpacking
        return length * self.matrices + pairs * self.pair + extra

    def rows(self, row: Row, token_budget: float) -> list[Row]:
        """Split the row if its parts cost less or if it exceeds the budget."""
        if not (row.shared and self.shares):
            return row.parts()
        middle = len(row.completions) // 2
        halves = row.part(0, middle), row.part(middle, len(row.completions))
        unsplit = self._laid_out(row)
        fits = held_tokens([unsplit], self.mask_weight) <= token_budget
        if fits and self.cost(unsplit) <= sum(self.cost(self._laid_out(half)) for half in halves):
            return [unsplit]
        return [part for half in halves for part in self.rows(half, token_budget)]

    def _laid_out(self, row: Row) -> Row:
        masked_cost = self.cost(row)
        if not row.shared or masked_cost <= self.unpacking:
            return row
        unpacked, split_cost = replace(row, unpacked=True), sum(map(self.cost, row.parts()))
        return unpacked if self.cost(unpacked) < min(masked_cost, split_cost) else row


SEPARATE = RowCost(0, 0, 0.0, shares=False)


T = TypeVar("T")


class UpdateShare:
    """Part of an update that this process computes: by default all of it.

    All processes call the same methods and make equally many passes.
    """

    def room(self, budget: TokenBudget, held: Sequence[float]) -> float:
        """Return the maximum size of an unsplit row, given the sizes of an update's rows."""
        return budget.tokens

    def cut(self, budget: TokenBudget, batch: MicroBatch) -> None:
        """Lower the budget because memory ran out in ``batch``."""
        budget.halve(batch)

    def rows(self, rows: list[Row]) -> list[Row]:
        """Return the rows of an update that this process reads."""
        return rows

    def whole(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Divide whole groups among the processes; return the rows of each, this one's first."""
        return [list(rows)]

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all processes, each of which holds a part of the weights."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes; the first is that of the one that runs the node.

        Tensors of other processes are in main memory.
        """
        return [value]

    def tally(self, tally: UpdateSums) -> UpdateSums:
        """Sum the tallies of all processes."""
        return tally
