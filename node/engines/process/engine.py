"""Rollout engine in a separate process, which is monitored and restarted."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from node.engines.engine import (
    OWN,
    Pending,
    Prompts,
    RequestOutput,
    RolloutEngine,
    Sample,
    Sampling,
    SamplingRequest,
)
from node.engines.process.child import EngineChild, Starter
from node.errors import NodeError
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

MESSAGE_TOKENS = 1 << 20


class EngineProcess(RolloutEngine):
    """A :class:`node.engines.engine.RolloutEngine` that samples in another process.

    The first submission starts the process. The owner keeps every trajectory and its reported
    tokens. If the process dies, or hangs and is killed, another one continues without losses or
    duplicates. If that one dies too, the next call raises and the engine is closed. Restarts are
    counted as ``engine_restarts``.

    A resumed run samples other completions, because the order of draws depends on when submissions
    arrive.
    """

    def __init__(self, policy: Policy, starter: Starter, counters: Counters) -> None:
        self._policy = policy
        self._starter = starter
        self.counters = counters
        self._starting = threading.Lock()
        self._nudged = threading.Event()
        self._child: EngineChild | None = None
        self._submitted = 0
        self._ordered = 0
        self._done_orders = 0
        self._closed = False
        self._pausing = False
        self._failure: NodeError | None = None
        self._pending: dict[int, Pending] = {}
        self._finished: defaultdict[int, list[tuple[int, Sample]]] = defaultdict(list)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def generate(self, prompts: Prompts, n: int, sampling: Sampling) -> list[list[Sample]]:
        rows = [tuple(prompt) for prompt in prompts for _ in range(n)]
        keys = range(self._submitted, self._submitted + len(rows))  # unlike those of a failed call
        requests = [SamplingRequest(*each, stream=OWN) for each in zip(keys, rows, strict=True)]
        self._take_on([Pending.of(each, sampling, self._policy) for each in requests])
        finished = dict(self._finished.pop(OWN, []))
        while not finished.keys() >= set(keys):
            self._receive(None)
            finished |= dict(self._finished.pop(OWN, []))
        samples = [finished[key] for key in keys]
        return [samples[start : start + n] for start in range(0, len(samples), n)]

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        keys = {p.trajectory.key for p in self._pending.values() if p.trajectory.stream != OWN}
        for trajectory in trajectories:
            if trajectory.key in keys:
                raise ValueError(f"there is a trajectory with the key {trajectory.key} already")
            keys.add(trajectory.key)
        self._take_on([Pending.of(each, sampling, self._policy) for each in trajectories])

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        deadline = time.monotonic() + seconds
        self._receive(0.0)
        while not (self._finished[stream] or self._nudged.is_set()):
            if (remaining := deadline - time.monotonic()) <= 0:
                break
            self._receive(remaining)
        self._nudged.clear()
        return self._finished.pop(stream, [])

    def abort(self, keys: Sequence[int]) -> None:
        if self._child and keys:
            self._child.send({"abort": list(keys)})

    def nudge(self) -> None:
        self._nudged.set()
        if child := self._child:
            child.nudge()

    def pause(self) -> list[tuple[int, Tokens]]:
        self._pausing = True
        try:
            if self._pending:
                self._order("pause")
        finally:
            self._pausing = False
        unfinished = [(p.trajectory.key, p.tokens) for p in self._pending.values()]
        self._pending.clear()
        return unfinished

    def sleep(self) -> None:
        self._order("sleep")

    def update(self, policy: Policy) -> None:
        """Hand over new weights; if NodeError is raised, the earlier ones stay in use."""
        with self._starting:
            self._policy = policy
            if self._closed:
                log.info("version %d comes after the engine was closed", policy.version)
            else:
                self._starter.write(policy)
                if self._child:
                    self._child.send({"update": policy.version})

    def close(self) -> None:
        with self._starting:
            self._closed = True
            child, self._child = self._child, None
        if child:
            child.end()
        self._starter.remove()

    def _order(self, order: str) -> None:
        """Send an order and wait until the process, if there is one, has executed it."""
        self._ordered += 1
        receiver: EngineChild | None = None
        while self._child and self._done_orders < self._ordered:
            if self._child is not receiver:  # the first process, and each that replaces it
                receiver = self._child
                receiver.send({order: self._ordered})
            self._receive(None)

    def _take_on(self, trajectories: Sequence[Pending]) -> None:
        """Register trajectories and send them; those already complete are done."""
        numbers = list(range(self._submitted, self._submitted + len(trajectories)))
        self._submitted += len(trajectories)
        self._pending.update(zip(numbers, trajectories, strict=True))
        for number, pending in zip(numbers, trajectories, strict=True):
            if (finish := pending.ended(self._policy)) is not None:
                self._done(number, finish)
        if self._child is None:
            self.start()
            self._send(self._pending)
        else:
            self._send(number for number in numbers if number in self._pending)

    def start(self) -> None:
        """Start the process now; raise NodeError if that fails or the engine is closed."""
        with self._starting:
            if self._closed:
                raise self._failure or NodeError("the engine is closed", None, "Open another one.")
            self._child = self._starter.start(self._policy)

    def _send(self, numbers: Iterable[int]) -> None:
        assert self._child is not None
        requests: list[list[Any]] = []
        tokens = 0
        for number in numbers:
            request = self._pending[number].request(number)
            length = len(request.ids)
            if requests and tokens + length > MESSAGE_TOKENS:
                self._child.send({"requests": requests})
                requests, tokens = [], 0
            requests.append(list(astuple(request)))
            tokens += length
        self._child.send({"requests": requests})

    def _receive(self, seconds: float | None) -> None:
        if self._child is None:
            self._nudged.wait(seconds or 0.0)
            return
        with suppress(queue.Empty):
            while (message := self._child.next(seconds)) is not None:
                self._handle(message)
                seconds = 0.0
            self._replace_dead()

    def _handle(self, message: dict[str, Any]) -> None:
        self._done_orders = message.get("done", self._done_orders)
        for output in (RequestOutput(*each) for each in message.get("written", ())):
            if pending := self._pending.get(output.number):
                pending.added.append(output)
                if output.finish is not None:
                    self._done(output.number, Finish(output.finish))

    def _done(self, number: int, finish: Finish) -> None:
        pending = self._pending.pop(number)
        sample = pending.sample(self._policy, finish)
        self._finished[pending.trajectory.stream].append((pending.trajectory.key, sample))

    def _replace_dead(self) -> None:
        """Replace a dead process once; without pending work, at the next submission."""
        with self._starting:
            child, self._child = self._child, None
        assert child is not None
        outcome = child.end()
        if not child.ready or self._starter.starts > 1:
            self._failure = NodeError(
                "the engine failed twice" if child.ready else "the engine does not start",
                outcome,
                f"{child.remedy} Its output is in node.log with monitor.log_level = 'debug'. The "
                "run resumes from its last checkpoint.",
            )
            self.close()
            if not self._pausing:
                raise self._failure
            log.error("%s", self._failure)
            return
        self.counters.add("engine_restarts")
        needed = self._pending and not self._pausing
        action = "replaces it" if needed else "starts with the next request"
        log.warning("the engine failed (%s): another one %s", outcome, action)
        if needed:
            self.start()
            self._send(self._pending)
