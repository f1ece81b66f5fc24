"""How many tokens a micro-batch may have, when memory turns out to be smaller than thought."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from node.errors import NodeError
from node.learner.batches import MicroBatch, Row, held_tokens
from node.learner.update_stats import Tally
from swarm.common.util import counted

log = logging.getLogger(__name__)

MESSAGES = (
    "DefaultCPUAllocator",
    "not enough memory",
    "MPS backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
"""Of errors that torch has no exception for."""


def ran_out(work: Callable[[], object]) -> bool:
    """Do ``work``; whether memory ran out in it.

    The error ends here, and with its traceback whatever ``work`` had allocated.
    """
    try:
        work()
    except RuntimeError as error:
        told = any(message in str(error) for message in MESSAGES)
        if not (told or isinstance(error, torch.OutOfMemoryError)):
            raise
        return True
    return False


def no_room_to_step() -> NodeError:
    """Memory ran out where the optimizer needs it, which no smaller micro-batch changes."""
    return NodeError(
        "memory runs out in the optimizer's step",
        "it keeps two numbers for each trained weight, and a float32 copy of weights in half "
        "precision",
        "Set learner.optimizer = 'adamw8bit', learner.offload = true or policy.lora_rank = 16; "
        "where an engine is on the same GPU, engine.sleep_mode = true or a lower "
        "engine.gpu_memory.",
    )


class TokenBudget:
    """:func:`node.learner.batches.held_tokens` of a micro-batch, halved whenever memory runs out.

    Attributes:
        tokens: the most from now on.
        halved: how often that was lowered.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.halved = 0

    def halve(self, batch: MicroBatch) -> None:
        """Lower the budget so far that what ``batch`` holds will be cut.

        Raises:
            NodeError: it is a single completion, which nothing can cut.
        """
        completions, length = len(batch.mask), batch.input_ids.shape[1]
        if completions == 1:
            raise NodeError(
                "memory runs out with a single completion in a micro-batch",
                f"{counted(length, 'token')}, prompt included",
                "learner.micro_batch_tokens cannot lower that: lower learner.max_completion_tokens "
                "and engine.max_new_tokens, or set learner.gradient_checkpointing = true.",
            )
        before, self.tokens = self.tokens, min(self.tokens, batch.input_ids.numel()) // 2
        self.halved += 1
        if batch.input_ids.is_cuda:
            torch.cuda.empty_cache()
        elif batch.input_ids.is_mps:
            torch.mps.empty_cache()
        log.warning(
            "memory ran out in a micro-batch of %d completions: learner.micro_batch_tokens is "
            "lowered from %d to %d until the node starts again, and the pass is done anew",
            completions,
            before,
            self.tokens,
        )


STEADY_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary position embeddings that do not depend on the sequence's length."""


def fits(model: PreTrainedModel) -> bool:
    """Whether ``model.forward`` gives a completion in a shared row what it gives it alone.

    It does where every layer is plain causal attention that takes a four-dimensional mask as it is
    and positions as they are told. Sliding and chunked windows, state-space and linear attention
    layers, flash attention and rotations that depend on the length do not.
    """
    config = model.config.get_text_config()
    rotation = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    layers = getattr(config, "layer_types", None) or ("full_attention",)
    return (
        model._supports_attention_backend
        and not model._is_stateful
        and config._attn_implementation in ("sdpa", "eager")
        and getattr(config, "sliding_window", None) is None
        and all(layer == "full_attention" for layer in layers)
        and rotation.get("rope_type") in STEADY_ROTATIONS
        and "position_ids" in inspect.signature(model.forward).parameters
    )


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row costs, estimated in multiplications of a forward pass.

    A shared row saves copies of the prompt, and pays for the whole square of its tokens where rows
    of one completion pay for half of a small square each.

    Attributes:
        matrices: of one token with the weights.
        pair: of one token's attention to another, in all layers.
        mask_weight: of one number of the mask in memory, against all that is kept of a token for
            the backward pass; taken too high, as if only every layer's input was kept.
    """

    matrices: int
    pair: int
    mask_weight: float

    @classmethod
    def of(cls, model: PreTrainedModel) -> RowCost:
        """Of a model that :func:`fits`."""
        config = model.config.get_text_config()
        heads, hidden = config.num_attention_heads, config.hidden_size
        size = getattr(config, "head_dim", None) or hidden // heads
        layers = config.num_hidden_layers
        return cls(
            model.num_parameters(exclude_embeddings=True),
            2 * layers * heads * size,
            1.0 / (layers * hidden),
        )

    def cost(self, row: Row) -> float:
        """Multiplications that the row takes."""
        length = row.length
        pairs = length * length if row.shared else length * length / 2
        return length * self.matrices + pairs * self.pair

    def rows(self, row: Row, token_budget: float) -> list[Row]:
        """The row, or parts of it where they cost less or where it is beyond the budget."""
        if not row.shared:
            return [row]
        middle = len(row.completions) // 2
        halves = row.part(0, middle), row.part(middle, len(row.completions))
        within = held_tokens(1, row, self.mask_weight) <= token_budget
        if within and self.cost(row) <= sum(map(self.cost, halves)):
            return [row]
        return [part for half in halves for part in self.rows(half, token_budget)]


T = TypeVar("T")


class Share:
    """All of it. Processes that train one policy together each give their learner one of their own.

    They call the same methods of their learners, and go through the model equally often.
    """

    def room(self, budget: TokenBudget, held: Sequence[float]) -> float:
        """The most that a row may hold uncut, where an update's rows hold so much."""
        return budget.tokens

    def cut(self, budget: TokenBudget, batch: MicroBatch) -> None:
        """Lower the budget: memory ran out in ``batch``."""
        budget.halve(batch)

    def rows(self, rows: list[Row]) -> list[Row]:
        """Those of an update's rows that are read here."""
        return rows

    def idle(self, batches: int) -> int:
        """How often others go through the model beyond ``batches`` times."""
        return 0

    def sum(self, value: Tensor) -> Tensor:
        """Over all processes, each of which holds a part of the weights."""
        return value

    def agreed(self, value: T) -> T:
        """The same in all processes: that of the one which holds the node."""
        return value

    def tally(self, tally: Tally) -> Tally:
        """Over all processes."""
        return tally
