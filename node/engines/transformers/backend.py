"""A back-end over ``transformers``: one batch that jobs join and leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from node.engines.backend import BackendSettings, Job, Written
from node.engines.transformers.continuous_batch import ContinuousBatch
from node.engines.weight_snapshot import load_into
from node.policy.device import draws_on, give_back
from node.policy.policy import Policy

READ_COST = 0.3
"""Of reading a token again, in steps of writing one, on a CPU; on a GPU it is next to nothing."""
MOST_DELAY = 32
"""Steps."""


class ContinuousDecoding:
    """Jobs are written in a batch of equal sampling; those with the same ids are read once for all.

    When the weights change the batch is cut between two steps: what it has written becomes part of
    its jobs' ids, and the next batch begins with them. Reading them again costs one forward pass
    over short texts, and leaves no cache of earlier weights behind. The cut waits for so many steps
    as that pass would cost, in which no job joins: rows that are nearly done are not read again
    for their last tokens. Models with a cache that rows cannot join are cut in the same way when
    enough jobs wait.

    Args:
        policy: whose model is sampled from; its weights are replaced by :meth:`update`.
    """

    def __init__(self, policy: Policy, settings: BackendSettings) -> None:
        self.policy = policy
        self._folder = Path(settings.folder)
        random = torch.Generator(draws_on(policy.device)).manual_seed(settings.seed)
        eight_bits = settings.options.get("int8", False)
        self._batch = ContinuousBatch(policy, random, settings.max_rows, eight_bits=eight_bits)
        self._update_in: int | None = None
        policy.version = load_into(policy.model, self._folder)

    @classmethod
    def open(cls, settings: BackendSettings) -> ContinuousDecoding:
        """Build the model that the snapshot describes.

        Raises:
            SnapshotError: its weights cannot be used.
        """
        config = AutoConfig.from_pretrained(settings.folder)
        build: Any = AutoModelForCausalLM.from_config
        model = build(config, dtype=getattr(torch, settings.dtype))
        tokenizer = AutoTokenizer.from_pretrained(settings.folder)
        policy = Policy(model.to(settings.device), tokenizer, settings.folder)
        policy.stop_ids = settings.stop_ids
        policy.context_length = settings.context_length
        return cls(policy, settings)

    @property
    def busy(self) -> bool:
        """See :class:`node.engines.backend.Backend`."""
        return self._batch.busy

    def submit(self, jobs: Sequence[Job]) -> None:
        """See :class:`node.engines.backend.Backend`."""
        self._batch.submit(jobs)

    def forget(self, lasting: Sequence[int]) -> None:
        """See :class:`node.engines.backend.Backend`."""
        self._batch.forget(lasting)

    @torch.inference_mode()
    def step(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        written = self._batch.step(admit=self._update_in is None)
        if self._update_in is not None:
            self._update_in -= 1
            written += self._load_when_due()
        return written

    @torch.inference_mode()
    def update(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        if self._update_in is None:
            self._update_in = self._delay()
        return self._load_when_due()

    @torch.inference_mode()
    def halt(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        written = self._batch.halt()
        if self._update_in is not None:
            self._load_when_due()
        return written

    def rest(self) -> None:
        """See :class:`node.engines.backend.Backend`."""
        give_back(self.policy.device)  # the learner is in another process, and needs the room

    def _delay(self) -> int:
        """Steps that reading the batch again would cost."""
        lengths = self._batch.lengths
        if self.policy.device.type != "cpu" or not lengths:
            return 0
        return min(MOST_DELAY, int(READ_COST * sum(lengths) / len(lengths)))

    def _load_when_due(self) -> list[Written]:
        if self._batch.lengths and self._update_in:
            return []
        written = self._batch.cut()
        self.policy.version = load_into(self.policy.model, self._folder)
        self._update_in = None
        return written
