"""The serving half of a transport: one protocol's handler behind its limits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.counters import Counters
from swarm.transport import Handler, Refusal

logger = logging.getLogger(__name__)


class Service:
    """A handler that takes a bounded number of requests at a time, in total and from each peer."""

    def __init__(
        self,
        protocol: str,
        handler: Handler,
        counters: Counters,
        *,
        request_limit: int,
        concurrent: int,
        concurrent_per_peer: int,
    ) -> None:
        self.protocol = protocol
        self.request_limit = request_limit
        self._handler = handler
        self._counters = counters
        self._concurrent = concurrent
        self._concurrent_per_peer = concurrent_per_peer
        self._running: Counter[str] = Counter()

    @contextmanager
    def admit(self, peer: str) -> Iterator[None]:
        """Hold one of the peer's places from the first byte read to the last one sent.

        Raises:
            Refusal: ``busy``, no place is free.
        """
        if (
            self._running.total() >= self._concurrent
            or self._running[peer] >= self._concurrent_per_peer
        ):
            raise self.refusal("busy")
        self._running[peer] += 1
        try:
            yield
        finally:
            self._running[peer] -= 1
            if not self._running[peer]:
                del self._running[peer]

    def check_size(self, size: int) -> None:
        """Raises :class:`Refusal` ``too_large`` when a request of ``size`` bytes is over limit."""
        if size > self.request_limit:
            raise self.refusal("too_large")

    async def answer(self, peer: str, request: bytes) -> bytes:
        """The handler's answer; whatever goes wrong inside it becomes a :class:`Refusal`."""
        try:
            return await self._handler(peer, request)
        except Refusal as refusal:
            raise self.refusal(refusal.reason) from None
        except Exception:
            logger.exception("handler of %s failed on a request of %s", self.protocol, peer)
            raise self.refusal("internal") from None

    def refusal(self, reason: str) -> Refusal:
        """A counted refusal, to be raised."""
        self._counters.add("requests_refused", protocol=self.protocol, reason=reason)
        return Refusal(reason)
