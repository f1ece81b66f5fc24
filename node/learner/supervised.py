"""Supervised steps on completions: the loss of a warm start, and its record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from node.config.learning import LearnerSection
from node.errors import NodeError
from node.learner.optimizer import Optimizer
from node.policy.policy import Policy
from node.storage.atomic_files import write_atomic

RECORD = "warm_start.json"
ROWS = 4  # of a forward pass; the logits of all its tokens are held at once
IGNORED = -100


@dataclass(frozen=True, slots=True)
class WarmStarted:
    """A warm start as recorded beside its model; success is of held-out tasks, 0 to 1."""

    base: str
    steps: int
    examples: int
    families: tuple[str, ...]
    success_before: float
    success_after: float
    informative_after: float

    def write(self, folder: Path) -> None:
        write_atomic(folder / RECORD, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, model: str) -> WarmStarted | None:
        """Return the record beside a model; None if it has none. Raises NodeError if damaged."""
        path = Path(model).expanduser() / RECORD
        if not path.is_file():
            return None
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValueError as error:
            remedy = "Copy it again from the source of the model, or delete it."
            raise NodeError("the record of a warm start cannot be read", path, remedy) from error


class SupervisedLearner:
    """In-place steps of a policy toward given completions, by their mean log-prob.

    Only the completion's tokens, with the end of its turn, are learned. ``learning`` gives the
    optimizer's settings.
    """

    def __init__(self, policy: Policy, learning: LearnerSection) -> None:
        self._policy = policy
        self._optimizer = Optimizer(policy.model.parameters(), learning)

    def step(self, examples: Sequence[tuple[str, str]]) -> float:
        """Do one step on prompts and completions; return the loss before it, nats per token."""
        rows = [self._row(prompt, completion) for prompt, completion in examples]
        num_tokens = sum(int((labels != IGNORED).sum()) for _, labels in rows)
        loss = 0.0
        for start in range(0, len(rows), ROWS):
            chunk_loss = self._loss(rows[start : start + ROWS]) / num_tokens
            self._optimizer.backward(chunk_loss)
            loss += chunk_loss.item()
        self._optimizer.clip()
        self._optimizer.step()
        self._policy.version += 1
        return loss

    def _row(self, prompt: str, completion: str) -> tuple[Tensor, Tensor]:
        """Return ids and labels, ``[T]``, int64."""
        context = self._policy.encode_prompt(prompt)
        answer = self._policy.encode_completion(completion, stopped=True)
        return torch.tensor(context + answer), torch.tensor([IGNORED] * len(context) + answer)

    def _loss(self, rows: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the summed negative log-prob of the labels, a scalar."""
        device = self._policy.device
        # What is padded on the right is read by no token before it.
        ids = pad_sequence([each for each, _ in rows], batch_first=True).to(device)
        labels = pad_sequence([each for _, each in rows], batch_first=True, padding_value=IGNORED)
        logits = self._policy.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        targets = labels[:, 1:].to(device)
        return cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
