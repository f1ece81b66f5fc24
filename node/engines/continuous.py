"""A back-end over ``transformers``: one batch, laid out anew whenever that is worth it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from node.engines.backend import BackendSettings, Job, Written
from node.engines.decoding import Decoding
from node.engines.engine import Sampling
from node.engines.snapshot import load_into
from node.policy import Policy
from protocol.rollout import Finish

REPORT_EVERY = 32
"""Steps between two reports of what goes on; more of it would be lost with the process."""
JOIN_SHARE = 0.25
"""Jobs wait until they are this share of those that are left in the batch. Each time they are let
in, all of the batch is read once more."""


@dataclass(slots=True)
class _Row:
    """A job in the batch, and how many of its tokens were reported."""

    job: Job
    reported: int = 0


class ContinuousDecoding:
    """Jobs run in batches of equal sampling; jobs with the same ids are read once for all.

    When enough others wait, or the weights change, the batch is cut between two steps: what it
    has written becomes part of its jobs' ids, and the next batch begins with them. Reading them
    again costs one forward pass over short texts, and leaves no cache of earlier weights behind.

    Args:
        policy: whose model is sampled from; its weights are replaced by :meth:`update`.
    """

    def __init__(self, policy: Policy, settings: BackendSettings) -> None:
        self._policy = policy
        self._folder = Path(settings.folder)
        self._max_rows = settings.max_rows
        self._random = torch.Generator(policy.device)
        self._random.manual_seed(settings.seed)
        self._waiting: deque[Job] = deque()
        self._rows: dict[int, _Row] = {}
        self._decoding: Decoding | None = None
        self._sampling = Sampling()
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
        written = self._cut() if self._worth_a_cut() else []
        if self._decoding is None:
            if not self._waiting:
                return written
            self._begin()
        decoding = self._decoding
        assert decoding is not None
        decoding.step(self._sampling, self._random)
        if decoding.left < len(self._rows):
            going = decoding.going()
            written += self._report([number for number in self._rows if number not in going])
        elif decoding.sampled % REPORT_EVERY == 0:
            written += self._report(list(self._rows))
        if not decoding.live:
            self._decoding = None
        return written

    def update(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        with torch.inference_mode():
            written = self._cut()
        self._policy.version = load_into(self._policy.model, self._folder)
        return written

    @torch.inference_mode()
    def halt(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        written = self._cut()
        self._waiting.clear()
        return written

    def _worth_a_cut(self) -> bool:
        going = len(self._rows)
        room = min(len(self._waiting), self._max_rows - going)
        return self._decoding is not None and room > 0 and room >= JOIN_SHARE * going

    def _begin(self) -> None:
        """Take from the front of the queue what fits into a batch."""
        first = self._waiting[0]
        self._sampling = Sampling(first.temperature, greedy=first.greedy)
        alike: dict[tuple[int, ...], list[Job]] = {}
        taken = 0
        while self._waiting and taken < self._max_rows:
            job = self._waiting[0]
            if (job.temperature, job.greedy) != (first.temperature, first.greedy):
                break
            alike.setdefault(job.ids, []).append(self._waiting.popleft())
            taken += 1
        jobs = [job for same in alike.values() for job in same]
        self._rows = {number: _Row(job) for number, job in enumerate(jobs)}
        counts = [len(same) for same in alike.values()]
        self._decoding = Decoding(self._policy, list(alike), counts, [job.room for job in jobs])

    def _cut(self) -> list[Written]:
        """End the batch; what goes on in it waits, before all others and with what it has."""
        decoding = self._decoding
        if decoding is None:
            return []
        written = self._report(list(self._rows))
        left = []
        for number, row in self._rows.items():
            added = decoding.ids[number, : decoding.sampled].tolist()
            left.append(
                replace(row.job, ids=(*row.job.ids, *added), room=row.job.room - len(added))
            )
        self._waiting.extendleft(reversed(left))
        self._rows, self._decoding = {}, None
        return written

    def _report(self, numbers: list[int]) -> list[Written]:
        """What some rows have that was not reported; rows that have ended are let go."""
        decoding = self._decoding
        assert decoding is not None
        decoding.save()
        written = []
        for number in numbers:
            row = self._rows[number]
            columns = slice(row.reported, min(decoding.sampled, row.job.room))
            ids = decoding.ids[number, columns].tolist()
            ends = [at for at, token in enumerate(ids) if token in self._policy.stop_ids]
            length = ends[0] + 1 if ends else len(ids)
            finish = Finish.STOP if ends else None
            if not ends and columns.stop == row.job.room:
                finish = Finish.LENGTH
            logprobs = decoding.logprobs[number, columns].tolist()[:length]
            row.reported += length
            written.append(
                Written(row.job.number, ids[:length], logprobs, self._policy.version, finish)
            )
            if finish is not None:
                del self._rows[number]
        return written
