"""How much a round writes and reads, as a configuration asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from node.config.config import Config
from node.plan.model_shape import ModelShape

ENGINE_ROWS = 256
"""Completions that the embedded engine decodes side by side."""
PROCESS_ROWS = 64
"""The same of an engine in a process of its own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens and rows of a round.

    Attributes:
        prompt: tokens of a task's prompt.
        answer: most tokens of a completion.
        rows: completions that the engine decodes side by side.
        written: completions that a round writes.
        read: tokens that an update reads.
        steps: of the optimizer in an update.
        batch: tokens of its largest forward pass.
        scored: of these the ones whose log-probs are asked for.
    """

    prompt: int
    answer: int
    rows: int
    written: int
    read: int
    steps: int
    batch: int
    scored: int

    @classmethod
    def of(cls, config: Config, shape: ModelShape, prompt: int) -> Workload:
        """What ``config`` asks for, with prompts of so many tokens and answers of full length."""
        size = config.engine.group_size
        answer = max(1, min(config.engine.max_new_tokens, shape.context - prompt))
        own = max(1, config.mixture.local)
        groups = max(own + config.mixture.external, config.mixture.informative)
        most = PROCESS_ROWS if config.overlaps else ENGINE_ROWS
        # What peers do not spare is generated, and an evaluation writes an answer to each task.
        rows = max(
            size, min(most, max((own + config.mixture.external) * size, config.schedule.eval_tasks))
        )
        row = prompt + answer
        group = _read_together(shape, size, prompt, answer)
        # Groups of others are measured, and so read, one by one.
        step = group if config.mixture.external else groups * group
        batch = max(row, min(config.learner.micro_batch_tokens, step))
        return cls(
            prompt=prompt,
            answer=answer,
            rows=rows,
            written=(own + config.mixture.external) * size,
            read=groups * group * config.learner.epochs,
            steps=config.learner.epochs
            * max(1, groups // (config.learner.groups_per_step or groups)),
            batch=batch,
            scored=min(batch, round(batch * size * answer / group)),
        )


def _read_together(shape: ModelShape, size: int, prompt: int, answer: int) -> int:
    """Tokens that are read of a group, of whose completions so many share a row and its prompt as
    cost least together (:class:`node.learner.micro_batching.RowCost`)."""
    if not shape.shares:
        return size * (prompt + answer)
    pair = 2 * shape.layers * shape.heads * shape.head_size

    def cost(together: int) -> float:
        length = prompt + together * answer
        pairs = length * length / (1 if together > 1 else 2)
        return (length * shape.active + pairs * pair) / together

    best = min((n for n in range(1, size + 1) if size % n == 0), key=cost)
    return size // best * (prompt + best * answer)
