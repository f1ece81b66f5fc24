"""A back-end over ``transformers``: one batch that jobs join and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from node.engines.backend import BackendSettings, Job, Written
from node.engines.engine import Sampling
from node.engines.transformers.decoding import Decoding
from node.engines.weight_snapshot import load_into
from node.policy.device import draws_on, give_back
from node.policy.policy import Policy

JOIN_SHARE = 0.25
"""Jobs wait until they are this share of those that are in the batch: each time some are let in,
the cache is copied."""

READ_COST = 0.3
"""Of reading a token again, in steps of writing one, on a CPU; on a GPU it is next to nothing."""
MOST_DELAY = 32
"""Steps."""


@dataclass(slots=True)
class _Row:
    """A job in the batch, and what it was added there."""

    job: Job
    ids: list[int]


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
        self._max_rows = settings.max_rows
        self._random = torch.Generator(draws_on(policy.device))
        self._random.manual_seed(settings.seed)
        self._waiting: deque[Job] = deque()
        self._rows: dict[int, _Row] = {}
        self._joined = 0
        self._decoding: Decoding | None = None
        self._sampling = Sampling()
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
        return bool(self._waiting or self._rows)

    def submit(self, jobs: Sequence[Job]) -> None:
        """See :class:`node.engines.backend.Backend`."""
        self._waiting.extend(jobs)

    @torch.inference_mode()
    def step(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        written = self._admit() if self._update_in is None else []
        if self._decoding:
            written += self._by_job(self._decoding.step())
            if not self._decoding.left:
                self._decoding = None
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
        written = self._cut()
        self._waiting.clear()
        if self._update_in is not None:
            self._load_when_due()
        return written

    def rest(self) -> None:
        """See :class:`node.engines.backend.Backend`."""
        give_back(self.policy.device)  # the learner is in another process, and needs the room

    def _delay(self) -> int:
        """Steps that reading the batch again would cost."""
        if self.policy.device.type != "cpu" or not self._rows:
            return 0
        tokens = sum(len(row.job.ids) + len(row.ids) for row in self._rows.values())
        return min(MOST_DELAY, int(READ_COST * tokens / len(self._rows)))

    def _load_when_due(self) -> list[Written]:
        if self._rows and self._update_in:
            return []
        written = self._cut()
        self.policy.version = load_into(self.policy.model, self._folder)
        self._update_in = None
        return written

    def _admit(self) -> list[Written]:
        """Let jobs that wait into the batch, or begin another one, where that is worth it."""
        written: list[Written] = []
        going = len(self._rows)
        room = min(len(self._waiting), self._max_rows - going)
        if room <= 0 or room < JOIN_SHARE * going:
            return written
        if self._decoding and not self._decoding.open:
            written = self._cut()
        if self._decoding is None:
            first = self._waiting[0]
            self._sampling = Sampling(first.temperature, greedy=first.greedy)
            self._decoding = Decoding(self.policy, self._sampling, self._random)
            self._joined = 0
        if alike := self._take():
            jobs = [job for same in alike.values() for job in same]
            counts = [len(same) for same in alike.values()]
            joined = self._decoding.join(list(alike), counts, [job.room for job in jobs])
            written += self._by_job(joined)
            for number, job in enumerate(jobs, self._joined):
                self._rows[number] = _Row(job, [])
            self._joined += len(jobs)
        return written

    def _take(self) -> dict[tuple[int, ...], list[Job]]:
        """From the front of the queue what is sampled alike and fits into the batch, by ids."""
        alike: dict[tuple[int, ...], list[Job]] = {}
        sampling = (self._sampling.temperature, self._sampling.greedy)
        for _ in range(min(len(self._waiting), self._max_rows - len(self._rows))):
            job = self._waiting[0]
            if (job.temperature, job.greedy) != sampling:
                break
            alike.setdefault(job.ids, []).append(self._waiting.popleft())
        return alike

    def _cut(self) -> list[Written]:
        """End the batch; what goes on in it waits, before all others and with what it has."""
        if self._decoding is None:
            return []
        written = self._by_job(self._decoding.flush())
        self._waiting.extendleft(
            replace(row.job, ids=(*row.job.ids, *row.ids), room=row.job.room - len(row.ids))
            for row in reversed(self._rows.values())
        )
        self._rows, self._decoding = {}, None
        return written

    def _by_job(self, written: Sequence[Written]) -> list[Written]:
        """What rows were added, by the numbers of their jobs; those that have ended are let go."""
        named = []
        for each in written:
            row = self._rows[each.number]
            row.ids += each.ids
            named.append(replace(each, number=row.job.number))
            if each.finish is not None:
                del self._rows[each.number]
        return [each for each in named if each.ids]
