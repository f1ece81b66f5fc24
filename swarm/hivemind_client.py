"""What hivemind's client of a p2p daemon is made to do: bear hang-ups, and charge for calls.

Works on the objects that :mod:`swarm.hivemind_node` hands over and imports nothing of hivemind.
"""

from __future__ import annotations

import logging
from typing import Any

from swarm.budget import ByteBudget
from swarm.clock import SystemClock
from swarm.counters import Counters

logger = logging.getLogger(__name__)

RPC_BYTES_PER_SECOND = 1 << 20
RPC_LARGEST = 1 << 20


def expect_hang_ups(p2p: Any) -> None:
    """Take a stream that the daemon closes before it says whose it is for what it is: no stream.

    The daemon leaves such when a peer is gone before its request, and when it ends itself.
    """
    control = p2p._client.control
    receive = control._handler

    async def on_stream(reader: Any, writer: Any) -> None:
        try:
            await receive(reader, writer)
        except (EOFError, ConnectionError) as error:
            logger.debug("a stream broke off: %s", error)
            writer.close()

    control._handler = on_stream


def limit_calls(p2p: Any, counters: Counters) -> None:
    """Charge every DHT call that comes in, so that one peer cannot keep this node verifying."""
    budget = ByteBudget(RPC_BYTES_PER_SECOND, RPC_LARGEST, SystemClock())
    handlers = p2p._client.control.unary_handlers

    def charged(handler: Any) -> Any:
        async def serve(request: bytes, peer: Any) -> bytes:
            if not budget.take(str(peer), len(request)):
                counters.add("dht_calls_refused")
                raise PermissionError("over budget")
            return bytes(await handler(request, peer))

        return serve

    for name, handler in handlers.items():
        handlers[name] = charged(handler)
