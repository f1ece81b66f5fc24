"""A back-end over ``transformers``: one batch that jobs join and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from node.engines.backend import BackendSettings, Job, Written
from node.engines.engine import Sampling
from node.engines.transformers.decoding import Decoding
from node.engines.transformers.kv_cache import Continued, RestingRow
from node.engines.weight_snapshot import load_into
from node.policy.device import draws_on, give_back
from node.policy.policy import Policy

JOIN_SHARE = 0.25
"""Jobs wait until they are this share of those that are in the batch: each time some are let in,
the cache is copied."""


@dataclass(slots=True)
class _Row:
    """A job in the batch, and what it was added there."""

    job: Job
    ids: list[int]


class _Rest(NamedTuple):
    """A trajectory between two turns: all its ids, and what was read of them."""

    ids: tuple[int, ...]
    row: RestingRow


class ContinuousBatch:
    """Jobs are written in a batch of equal sampling; those with the same ids are read once for all.

    Of a trajectory that may go on what was read is kept, and read on from there. Models with a
    cache that rows cannot join are cut when enough jobs wait, and read anew.

    Args:
        policy: whose model is sampled from.
        random: numbers are drawn from it.
        max_rows: jobs written side by side.
        eight_bits: see :class:`node.engines.transformers.decoding.Decoding`.

    Attributes:
        policy: before it or its weights are replaced comes :meth:`cut`.
    """

    def __init__(
        self, policy: Policy, random: torch.Generator, max_rows: int, *, eight_bits: bool = False
    ) -> None:
        self.policy = policy
        self._eight_bits = eight_bits
        self._random = random
        self._max_rows = max_rows
        self._waiting: deque[Job] = deque()
        self._rows: dict[int, _Row] = {}
        self._resting: dict[int, _Rest] = {}
        self._joined = 0
        self._decoding: Decoding | None = None
        self._sampling = Sampling()

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._rows)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each job in the batch."""
        return [len(row.job.ids) + len(row.ids) for row in self._rows.values()]

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs on, the first ones first."""
        self._waiting.extend(jobs)

    def step(self, *, admit: bool = True) -> list[Written]:
        """Add a token to what is being written; what is worth reporting now.

        Args:
            admit: whether jobs that wait may join.
        """
        written = self._admit() if admit else []
        if self._decoding:
            written += self._by_job(self._decoding.step())
            if not self._decoding.left:
                self._decoding = None
        return written

    def cut(self) -> list[Written]:
        """End the batch; what goes on in it waits, before all others and with what it has."""
        self._resting.clear()
        return self._ended()

    def halt(self) -> list[Written]:
        """Forget all jobs; what was not reported of them."""
        written = self.cut()
        self._waiting.clear()
        return written

    def forget(self, lasting: Sequence[int]) -> None:
        """See :meth:`node.engines.backend.Backend.forget`."""
        for name in lasting:
            self._resting.pop(name, None)

    def _ended(self) -> list[Written]:
        if self._decoding is None:
            return []
        written = self._by_job(self._decoding.flush())
        self._waiting.extendleft(
            replace(row.job, ids=(*row.job.ids, *row.ids), room=row.job.room - len(row.ids))
            for row in reversed(self._rows.values())
        )
        self._rows, self._decoding = {}, None
        return written

    def _admit(self) -> list[Written]:
        """Let jobs that wait into the batch, or begin another one, where that is worth it."""
        written: list[Written] = []
        going = len(self._rows)
        room = min(len(self._waiting), self._max_rows - going)
        if room <= 0 or room < JOIN_SHARE * going:
            return written
        if self._decoding and not self._decoding.open:
            written = self._ended()
        if self._decoding is None:
            first = self._waiting[0]
            self._sampling = Sampling(first.temperature, greedy=first.greedy)
            self._decoding = Decoding(
                self.policy, self._sampling, self._random, eight_bits=self._eight_bits
            )
            self._joined = 0
        return written + self._join(self._decoding)

    def _join(self, decoding: Decoding) -> list[Written]:
        alike, behind = self._take()
        jobs = [job for same in alike.values() for job in same] + [job for job, _ in behind]
        if not jobs:
            return []
        joined = decoding.join(
            list(alike),
            [len(same) for same in alike.values()],
            [job.room for job in jobs],
            [continued for _, continued in behind],
            [number for number, job in enumerate(jobs) if job.lasting is not None],
        )
        written = self._by_job(joined)
        for number, job in enumerate(jobs, self._joined):
            self._rows[number] = _Row(job, [])
        self._joined += len(jobs)
        return written

    def _take(self) -> tuple[dict[tuple[int, ...], list[Job]], list[tuple[Job, Continued]]]:
        """From the front of the queue what is sampled alike and fits into the batch: what is read
        from the beginning, by ids, and what is gone on with."""
        alike: dict[tuple[int, ...], list[Job]] = {}
        behind: list[tuple[Job, Continued]] = []
        sampling = (self._sampling.temperature, self._sampling.greedy)
        for _ in range(min(len(self._waiting), self._max_rows - len(self._rows))):
            job = self._waiting[0]
            if (job.temperature, job.greedy) != sampling:
                break
            self._waiting.popleft()
            if rest := self._rest_of(job):
                behind.append((job, Continued(rest.row, job.ids[rest.row.length :])))
            else:
                alike.setdefault(job.ids, []).append(job)
        return alike, behind

    def _rest_of(self, job: Job) -> _Rest | None:
        """What is kept of the trajectory that a job goes on with."""
        if job.lasting is None or (rest := self._resting.pop(job.lasting, None)) is None:
            return None
        return rest if job.ids[: len(rest.ids)] == rest.ids else None

    def _by_job(self, written: Sequence[Written]) -> list[Written]:
        """What rows were added, by the numbers of their jobs; those that have ended are let go."""
        named = []
        for each in written:
            row = self._rows[each.number]
            row.ids += each.ids
            named.append(replace(each, number=row.job.number))
            if each.finish is not None:
                del self._rows[each.number]
                self._let_rest(row, each.number)
        return [each for each in named if each.ids]

    def _let_rest(self, row: _Row, number: int) -> None:
        """Keep the row of a trajectory that may go on."""
        assert self._decoding is not None
        resting = self._decoding.resting.pop(number, None)
        if resting and row.job.lasting is not None:
            self._resting[row.job.lasting] = _Rest((*row.job.ids, *row.ids), resting)


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
