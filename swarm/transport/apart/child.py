"""The process that holds a node's place in the network: ``python -m swarm.transport.apart.child``.

Its parent's end of a socket pair is its standard input; it ends with that. It owns the daemon, the
hash table and every stream, and asks its parent only for answers to requests that it let in.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from swarm.common.clock import SystemClock
from swarm.common.counters import Counters, Repeats
from swarm.common.util import socket_at_stdin
from swarm.transport.apart.link import Link
from swarm.transport.apart.thrift import be_thrifty
from swarm.transport.node_transport import NodeTransport
from swarm.transport.record_rule import RecordRule
from swarm.transport.transport import Limits

LOOK_SECONDS = 0.5


class Child:
    """A transport that does what the parent says, and tells it what happens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters = Counters()
        self._counted: dict[str, float] = {}
        self._state: dict[str, Any] = {}
        self._transport: NodeTransport | None = None
        methods = (
            self.open,
            self.start,
            self.close,
            self.connect,
            self.store,
            self.read,
            self.request,
            self.handle,
            self.use_manifest,
            self.use_standings,
            self.watch,
        )
        self.link = Link(reader, writer, {method.__name__: method for method in methods})

    @property
    def transport(self) -> NodeTransport:
        assert self._transport is not None, "open comes first"
        return self._transport

    def open(
        self, over: str, log_level: int, identity: str, peer_cache: str | None, **settings: Any
    ) -> None:
        """Make the transport.

        Args:
            over: its class, as ``"module:name"``, which takes the other arguments.
        """
        logging.getLogger("swarm").setLevel(log_level)
        module, _, name = over.partition(":")
        transport = getattr(import_module(module), name)
        transport.prepare_process()
        self._transport = transport(
            Path(identity),
            peer_cache=Path(peer_cache) if peer_cache else None,
            **settings,
            counters=self.counters,
        )

    async def start(self) -> None:
        await self.transport.start()
        self.look()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
        self.look()

    async def connect(self, address: str) -> str:
        peer = await self.transport.connect(address)
        self.look()
        return peer

    async def store(self, *record: Any) -> bool:
        return await self.transport.store(*record)

    async def read(self, key: str) -> dict[bytes, bytes]:
        return await self.transport.read(key)

    async def request(self, *asked: Any, **limits: Any) -> bytes:
        answer = await self.transport.request(*asked, **limits)
        self.look()
        return answer

    def handle(self, protocol: str, **limits: int) -> None:
        """Serve a protocol with answers that the parent gives."""

        async def ask(peer: str, request: bytes) -> bytes:
            answer: bytes = await self.link.call("answer", protocol, peer, request)
            return answer

        self.transport.handle(protocol, ask, Limits(**limits))

    def use_manifest(self, signed: bytes) -> None:
        """Let in the records of one swarm."""
        self.transport.use_validator(RecordRule(signed, SystemClock(), self.counters))

    def use_standings(self, standings: dict[bytes, float]) -> None:
        """Take over who is known; all others are strangers."""
        self.transport.use_standing(lambda author: standings.get(author, 0.0))

    def watch(self, keys: list[str]) -> None:
        """Tell the parent of records that are stored here under some keys."""

        def heard(value: bytes) -> None:
            if not self.link.tell("hear", value):
                self.counters.add("records_not_told")

        self.transport.watch(keys, heard)

    def daemon(self) -> int | None:
        """Process id of the daemon; None while there is none."""
        return self._transport.daemon if self._transport else None

    def stand_still(self, seconds: float) -> None:
        """Stand still for a while, with every thread that works."""
        if self._transport is not None:
            self._transport.stand_still(seconds)
        time.sleep(seconds)  # so that the loop stands still as well

    def look(self) -> None:
        """Tell the parent what has changed since it was last told."""
        if self._transport is None:
            return
        totals = self.counters.snapshot()
        added = {k: n - self._counted.get(k, 0.0) for k, n in totals.items()}
        added = {name: n for name, n in added.items() if n}
        if added and self.link.tell("count", added):
            self._counted = totals
        state = self._transport.state()
        if state != self._state and self.link.tell("state", state):
            self._state = state

    async def look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()


class LinkHandler(logging.Handler):
    """Hands what is logged to the parent, whose log it belongs in."""

    def __init__(self, link: Link, counters: Counters) -> None:
        super().__init__()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._counters = counters

    def emit(self, record: logging.LogRecord) -> None:
        line = record.name, record.levelno, self.format(record)
        if threading.get_ident() == self._thread:
            self._tell(line)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, line)

    def _tell(self, line: tuple[str, int, str]) -> None:
        if not self._link.tell("log", *line):
            self._counters.add("log_lines_lost")


async def main() -> None:
    """Work until the parent hangs up or is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=socket_at_stdin())
    child = Child(reader, writer)
    handler = LinkHandler(child.link, child.counters)
    handler.addFilter(Repeats(SystemClock()))
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    looking = asyncio.ensure_future(child.look_again())
    thrifty = asyncio.ensure_future(be_thrifty(child.daemon, child.counters, child.stand_still))
    try:
        await child.link.run()
    finally:
        looking.cancel()
        thrifty.cancel()
        await child.close()


if __name__ == "__main__":
    asyncio.run(main())
    # All is closed. To take the libraries down one by one would keep a node that ends waiting.
    os._exit(0)
