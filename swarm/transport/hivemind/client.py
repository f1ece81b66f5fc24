"""What hivemind's client of a p2p daemon is made to do: bear hang-ups, charge for calls.

Works on the objects that :mod:`swarm.transport.hivemind.node` hands over and imports nothing of
hivemind.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from swarm.common.counters import Counters
from swarm.transport.call_budget import CallBudget
from swarm.transport.guests import Guests

logger = logging.getLogger(__name__)

UNACCEPTED = 512
"""Streams that may wait for this process while it does something else. Beyond asyncio's hundred the
daemon resets every further one, so that a flood of streams would shut everybody out."""


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


def limit_calls(p2p: Any, counters: Counters, guests: Guests) -> None:
    """Charge every DHT call that comes in, and its answer, to whoever calls."""
    budget = CallBudget(counters, guests)
    handlers = p2p._client.control.unary_handlers

    def charged(handler: Any) -> Any:
        async def serve(request: bytes, peer: Any) -> bytes:
            async def handle() -> bytes:
                return bytes(await handler(request, peer))

            return await budget.serve(str(peer), len(request), handle)

        return serve

    for name, handler in handlers.items():
        handlers[name] = charged(handler)


async def take_streams(p2p: Any) -> None:
    """Serve the streams that a daemon hands over, until cancelled."""
    control = p2p._client.control
    path = control.listen_maddr["unix"]
    async with await asyncio.start_unix_server(control._handler, path, backlog=UNACCEPTED):
        await asyncio.Future()
