"""Trajectories that the embedded engine writes while it is polled for them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from threading import Event

import torch

from node.engines.backend import Written
from node.engines.engine import Sample, Sampling, Trajectory
from node.engines.request import Pending
from node.engines.transformers.continuous_batch import ContinuousBatch
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens


class PolledBatch:
    """What :class:`node.engines.engine.RolloutEngine` says of single trajectories, in this process.

    Args:
        policy: whose model is sampled from, adapters merged.
        random: numbers are drawn from it.
        max_rows: trajectories written side by side.
        eight_bits: see :class:`node.engines.transformers.decoding.Decoding`.
    """

    def __init__(
        self, policy: Policy, random: torch.Generator, max_rows: int, *, eight_bits: bool = False
    ) -> None:
        self._policy = policy
        self._batch = ContinuousBatch(policy, random, max_rows, eight_bits=eight_bits)
        self._submitted = 0
        self._pending: dict[int, Pending] = {}
        self._finished: defaultdict[int, list[tuple[int, Sample]]] = defaultdict(list)
        self._lasting: set[int] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing is written, to be polled for or gone on with."""
        return not (self._pending or self._lasting or any(self._finished.values()))

    def submit(self, trajectories: Sequence[Trajectory], sampling: Sampling) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        taken = {each.trajectory.key for each in self._pending.values()}
        if len(taken | {each.key for each in trajectories}) < len(taken) + len(trajectories):
            raise ValueError("there is a trajectory with one of these keys already")
        wanted = [Pending.of(each, sampling, self._policy, streamed=True) for each in trajectories]
        jobs = []
        for number, pending in enumerate(wanted, self._submitted):
            self._pending[number] = pending
            if (finish := pending.ended(self._policy)) is not None:
                self._done(number, finish)
            else:
                jobs.append(pending.job(number))
        self._submitted += len(wanted)
        self._lasting |= {each.key for each in trajectories if each.lasts}
        self._batch.submit(jobs)

    @torch.inference_mode()
    def poll(self, seconds: float, stream: int, nudged: Event) -> list[tuple[int, Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`; it writes as long as this lasts."""
        deadline = time.monotonic() + seconds
        while not (self._finished[stream] or nudged.is_set()):
            left = deadline - time.monotonic()
            if self._batch.busy:
                self._take(self._batch.step())
            else:
                nudged.wait(max(0.0, left))
            if left <= 0:
                break
        nudged.clear()
        return self._finished.pop(stream, [])

    @torch.inference_mode()
    def halt(self) -> list[tuple[int, Tokens]]:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._take(self._batch.halt())
        left = [(each.trajectory.key, each.tokens) for each in self._pending.values()]
        self._pending.clear()
        return left

    @torch.inference_mode()
    def update(self, policy: Policy) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._take(self._batch.cut())
        self._policy = self._batch.policy = policy

    def forget(self, keys: Sequence[int]) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        self._lasting.difference_update(keys)
        self._batch.forget(keys)

    def _take(self, written: Sequence[Written]) -> None:
        for each in written:
            self._pending[each.number].added.append(each)
            if each.finish is not None:
                self._done(each.number, each.finish)

    def _done(self, number: int, finish: Finish) -> None:
        pending = self._pending.pop(number)
        done = (pending.trajectory.key, pending.sample(self._policy, finish))
        self._finished[pending.trajectory.stream].append(done)
