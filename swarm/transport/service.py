"""The serving half of a transport: one protocol's handler behind its limits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.common.counters import Counters
from swarm.transport.guests import Guests
from swarm.transport.places import Place, Places
from swarm.transport.transport import Handler, Limits, Refusal, TransportError

logger = logging.getLogger(__name__)


class Service:
    """A handler that takes a bounded number of requests at a time, in total and from each peer.

    Args:
        guests: what is known of those who ask, shared by all services of a transport.
    """

    def __init__(
        self,
        protocol: str,
        handler: Handler,
        limits: Limits,
        counters: Counters,
        guests: Guests,
    ) -> None:
        self.protocol = protocol
        self.request_limit = limits.request_bytes
        self.guests = guests
        self._handler = handler
        self._counters = counters
        self._places = Places(
            limits.concurrent, limits.concurrent_per_peer, guests.clock, guests.standings
        )

    @contextmanager
    def admit(self, peer: str) -> Iterator[Place]:
        """Hold one of the peer's places from the first byte read to the last one sent.

        Raises:
            Refusal: ``busy``, no place is free; ``backed_off``, the peer let this node wait lately;
                ``gave_way``, the place went to somebody else meanwhile.
        """
        if not self.guests.welcome(peer):
            raise self._turned_away(peer, "backed_off")
        place = self._places.take(peer)
        if place is None:
            raise self._turned_away(peer, "busy")
        try:
            yield place
        except (EOFError, OSError):
            if place.lost:
                raise self.refusal("gave_way") from None
            if place.waiting:
                self.guests.let_wait(peer)
            raise
        else:
            self.guests.kept_time(peer)
        finally:
            self._places.release(place)

    def asked(self, place: Place) -> None:
        """Note that a request is complete."""
        self._places.work(place)

    def answered(self, place: Place, size: int) -> None:
        """Note that an answer of ``size`` bytes is on its way."""
        self._places.hand_over(place, size)

    def check_size(self, size: int) -> None:
        """Raises :class:`Refusal` ``too_large`` when a request of ``size`` bytes is over limit."""
        if size > self.request_limit:
            raise self.refusal("too_large")

    async def answer(self, peer: str, request: bytes) -> bytes:
        """The handler's answer; whatever goes wrong inside it becomes a :class:`Refusal`."""
        try:
            return await self._handler(peer, request)
        except Refusal as refusal:
            raise self._turned_away(peer, refusal.reason) from None
        except TransportError as error:
            # of the process that the handler is in, which has told where it comes from
            logger.error("handler of %s failed on a request of %s: %s", self.protocol, peer, error)
            raise self.refusal("internal") from None
        except Exception:
            logger.exception("handler of %s failed on a request of %s", self.protocol, peer)
            raise self.refusal("internal") from None

    def refusal(self, reason: str) -> Refusal:
        """A counted refusal, to be raised."""
        self._counters.add("requests_refused", protocol=self.protocol, reason=reason)
        return Refusal(reason)

    def _turned_away(self, peer: str, reason: str) -> Refusal:
        self.guests.refused(peer)
        return self.refusal(reason)
