"""How many tokens a micro-batch may have, when memory turns out to be smaller than thought."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from node.errors import NodeError
from node.learner.batches import MicroBatch
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
