"""Calls of the hash table that others make: let in, charged and answered."""

from __future__ import annotations

import asyncio
import logging

from swarm.common.counters import Counters
from swarm.transport.call_budget import CallBudget
from swarm.transport.framing import Varint
from swarm.transport.guests import Guests
from swarm.transport.libp2p.calls import (
    FIND,
    PING,
    STORE,
    open_call,
    pack_answer,
    pack_error,
)
from swarm.transport.libp2p.hash_table import HashTable
from swarm.transport.records import MESSAGE_LIMIT
from swarm.transport.service import Service
from swarm.transport.streams import serve
from swarm.transport.transport import Limits, Refusal, TransportError

logger = logging.getLogger(__name__)

CONCURRENT = Limits(MESSAGE_LIMIT, concurrent=128, concurrent_per_peer=32)
LENGTH_VARINT = Varint()


class ServedCalls:
    """Answers the calls of one name with what the hash table says.

    Attributes:
        protocol: the streams that carry them.
    """

    def __init__(
        self,
        protocol: str,
        table: HashTable,
        budget: CallBudget,
        counters: Counters,
        guests: Guests,
    ) -> None:
        self.protocol = protocol
        self._table = table
        self._budget = budget
        self._counters = counters
        self._service = Service(protocol, self._answer, CONCURRENT, counters, guests)

    async def serve(
        self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the call that a stream carries."""
        try:
            await serve(reader, writer, self._service, peer, LENGTH_VARINT)
        except Refusal as refusal:
            logger.debug("%s from %s refused: %s", self.protocol, peer, refusal.reason)
        except (TransportError, ValueError) as error:
            self._counters.add("dht_calls_lost")
            logger.debug("%s of %s: %s", self.protocol, peer, error)
        finally:
            writer.close()

    async def _answer(self, peer: str, data: bytes) -> bytes:
        try:
            call_id, request = open_call(data)
        except (ValueError, OverflowError) as error:
            raise Refusal("malformed") from error

        async def handle() -> bytes:
            return await self._table.answer(self.protocol, peer, request)

        try:
            return pack_answer(call_id, await self._budget.serve(peer, len(data), handle))
        except (ValueError, OverflowError, PermissionError) as error:
            return pack_error(call_id, str(error))


def served_calls(table: HashTable, counters: Counters, guests: Guests) -> list[ServedCalls]:
    """One for each name; all of them share an allowance."""
    budget = CallBudget(counters, guests)
    return [ServedCalls(name, table, budget, counters, guests) for name in (PING, FIND, STORE)]
