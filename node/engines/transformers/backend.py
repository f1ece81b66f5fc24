"""Backend on ``transformers``: one continuous batch that requests join and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from node.engines.engine import BackendSettings, Request, RequestOutput, Sampling
from node.engines.transformers.decoding import Decoders, Decoding
from node.engines.transformers.kv_cache import Continued, PausedRow
from node.engines.transformers.static_decoding import StaticDecoding
from node.engines.weight_snapshot import load_into
from node.learner.micro_batching import ran_out
from node.policy.device import draws_on, give_back
from node.policy.policy import Policy

JOIN_SHARE = 0.25  # of the batch, so many requests have to wait: a join copies the cache


@dataclass(slots=True)
class _Row:
    request: Request
    ids: list[int]  # sampled so far

    @property
    def all_ids(self) -> tuple[int, ...]:
        return *self.request.ids, *self.ids


class _PausedTurn(NamedTuple):
    """A trajectory between two turns: all its ids, and its cached row."""

    ids: tuple[int, ...]
    row: PausedRow


class ContinuousBatch:
    """A batch of requests with equal sampling; requests with equal ids share one prefill.

    A trajectory's next turn continues from its cached row. If rows cannot join the model's cache,
    the batch ends when enough requests wait, and is prefilled again. If memory runs out, so does
    the batch, with half as many rows from then on. Call :meth:`cut` before you replace ``policy``
    or its weights. ``max_rows`` limits the requests decoded together.
    """

    def __init__(
        self, policy: Policy, random: torch.Generator, max_rows: int, decoders: Decoders
    ) -> None:
        self.policy = policy
        self._decoders = decoders
        self._random = random
        self.max_rows = max_rows
        self._waiting: deque[Request] = deque()
        self._rows: dict[int, _Row] = {}
        self._paused: dict[int, _PausedTurn] = {}
        self._joined = 0
        self._decoding: Decoding | StaticDecoding | None = None
        self._sampling = Sampling()
        self._due: list[RequestOutput] = []  # what is in the rows, but not yet returned

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._rows)

    @property
    def lengths(self) -> list[int]:
        return [len(row.request.ids) + len(row.ids) for row in self._rows.values()]

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)

    def step(self) -> list[RequestOutput]:
        """Sample one token per row; return what is due for a report.

        Raises NodeError if memory runs out for a single row.
        """
        if ran_out(self._step):
            lengths = [len(row.request.ids) + row.request.room for row in self._rows.values()]
            self._paused.clear()
            self._requeue()
            self.max_rows = self._decoders.fewer(self.policy, len(lengths), max(lengths, default=0))
        return self._reported()

    def _step(self) -> None:
        self._admit()
        if self._decoding:
            self._take_in(self._decoding.step())
            if not self._decoding.left:
                self._decoding = None

    def cut(self) -> list[RequestOutput]:
        """End the batch; its unfinished requests wait first in the queue, with their tokens."""
        self._paused.clear()
        self._end()
        return self._reported()

    def pause(self) -> list[RequestOutput]:
        """Abort all requests; return their unreported tokens."""
        outputs = self.cut()
        self._waiting.clear()
        return outputs

    def abort(self, lasting: Sequence[int]) -> None:
        for key in lasting:
            self._paused.pop(key, None)

    def _reported(self) -> list[RequestOutput]:
        outputs, self._due = self._due, []
        return outputs

    def _end(self) -> None:
        if self._decoding:
            self._take_in(self._decoding.flush())
            self._requeue()

    def _requeue(self) -> None:
        """End the batch without what it did not report."""
        self._waiting.extendleft(
            replace(row.request, ids=row.all_ids, room=row.request.room - len(row.ids))
            for row in reversed(self._rows.values())
        )
        self._rows, self._decoding = {}, None

    def _admit(self) -> None:
        """Let waiting requests join, or start a batch, if there are enough of them."""
        num_active = len(self._rows)
        count = min(len(self._waiting), self.max_rows - num_active)
        if count <= 0 or count < JOIN_SHARE * num_active:
            return
        if self._decoding and not self._decoding.open:
            self._end()
        if self._decoding is None:
            first = self._waiting[0]
            self._sampling = Sampling(first.temperature, greedy=first.greedy)
            self._decoding = self._decoders.open(self.policy, self._sampling, self._random)
            self._joined = 0
        self._join(self._decoding)

    def _join(self, decoding: Decoding | StaticDecoding) -> None:
        by_ids, next_turns = self._take()
        requests = [*chain.from_iterable(by_ids.values()), *(request for request, _ in next_turns)]
        if not requests:
            return
        for number, request in enumerate(requests, self._joined):
            self._rows[number] = _Row(request, [])
        outputs = decoding.join(
            list(by_ids),
            [len(group) for group in by_ids.values()],
            [request.room for request in requests],
            [continued for _, continued in next_turns],
            [number for number, request in enumerate(requests) if request.lasting is not None],
        )
        self._take_in(outputs)
        self._joined += len(requests)

    def _take(self) -> tuple[dict[tuple[int, ...], list[Request]], list[tuple[Request, Continued]]]:
        """Take requests that fit from the queue: those to prefill, by ids, and continued ones."""
        by_ids: dict[tuple[int, ...], list[Request]] = {}
        next_turns: list[tuple[Request, Continued]] = []
        sampling = (self._sampling.temperature, self._sampling.greedy)
        for _ in range(min(len(self._waiting), self.max_rows - len(self._rows))):
            request = self._waiting[0]
            if (request.temperature, request.greedy) != sampling:
                break
            self._waiting.popleft()
            if turn := self._paused_turn(request):
                next_turns.append((request, Continued(turn.row, request.ids[turn.row.length :])))
            else:
                by_ids.setdefault(request.ids, []).append(request)
        return by_ids, next_turns

    def _paused_turn(self, request: Request) -> _PausedTurn | None:
        if request.lasting is None or (turn := self._paused.pop(request.lasting, None)) is None:
            return None
        return turn if request.ids[: len(turn.ids)] == turn.ids else None

    def _take_in(self, outputs: Sequence[RequestOutput]) -> None:
        """Name what rows sampled by their requests' numbers; ended rows are removed."""
        for output in outputs:
            row = self._rows[output.number]
            row.ids += output.ids
            if output.ids:
                self._due.append(replace(output, number=row.request.number))
            if output.finish is not None:
                del self._rows[output.number]
                self._keep_paused(row, output.number)

    def _keep_paused(self, row: _Row, number: int) -> None:
        assert self._decoding is not None
        paused_row = self._decoding.paused.pop(number, None)
        if paused_row and row.request.lasting is not None:
            self._paused[row.request.lasting] = _PausedTurn(row.all_ids, paused_row)


READ_COST = 0.3  # prefill of a token on a CPU, in decoding steps; negligible on a GPU
MOST_DELAY = 32  # steps


class ContinuousDecoding(ContinuousBatch):
    """A backend of one batch, on the weights of a snapshot.

    When the weights change, the batch ends and the next one prefills its tokens, which leaves no
    cache of earlier weights. The update waits for as many steps as that pass would cost, in which
    no request joins, so that nearly finished rows are not prefilled again.
    """

    def __init__(self, policy: Policy, settings: BackendSettings) -> None:
        generator = torch.Generator(draws_on(policy.device)).manual_seed(settings.seed)
        int8, graphs = settings.options.get("int8", False), settings.options.get("graphs", True)
        decoders = Decoders(eight_bits=int8, graphs=graphs)
        super().__init__(policy, generator, settings.max_rows, decoders)
        self._folder = Path(settings.folder)
        self._update_in: int | None = None
        policy.version = load_into(policy.model, self._folder)

    @classmethod
    def open(cls, settings: BackendSettings) -> ContinuousDecoding:
        """Build the snapshot's model; raise SnapshotError if its weights cannot be used."""
        config = AutoConfig.from_pretrained(settings.folder, trust_remote_code=False)
        loader: Any = AutoModelForCausalLM
        dtype = getattr(torch, settings.dtype)
        model = loader.from_config(config, dtype=dtype, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(settings.folder, trust_remote_code=False)
        policy = Policy(model.to(settings.device), tokenizer, settings.folder)
        policy.stop_ids = settings.stop_ids
        policy.context_length = settings.context_length
        return cls(policy, settings)

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        outputs = super().step()
        if self._update_in is not None:
            self._update_in -= 1
            outputs += self._load_when_due()
        return outputs

    @torch.inference_mode()
    def update(self) -> list[RequestOutput]:
        if self._update_in is None:
            self._update_in = self._delay()
        return self._load_when_due()

    @torch.inference_mode()
    def pause(self) -> list[RequestOutput]:
        outputs = super().pause()
        if self._update_in is not None:
            self._load_when_due()
        return outputs

    def sleep(self) -> None:
        self._decoders.release(self.policy)
        give_back(self.policy.device)  # the learner's process needs the memory

    def _admit(self) -> None:
        if self._update_in is None:
            super()._admit()

    def _delay(self) -> int:
        lengths = self.lengths
        if self.policy.device.type != "cpu" or not lengths:
            return 0
        return min(MOST_DELAY, int(READ_COST * sum(lengths) / len(lengths)))

    def _load_when_due(self) -> list[RequestOutput]:
        if self.lengths and self._update_in:
            return []
        outputs = self.cut()
        self.policy.version = load_into(self.policy.model, self._folder)
        self._update_in = None
        return outputs
