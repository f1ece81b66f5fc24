"""The transport's child process, ``python -m swarm.transport.subprocess.child``.

Its standard input is a socket to the parent; the child ends when that closes. It owns the daemon,
the DHT and every stream, limits its CPU time, and asks the parent only for answers to requests
that it admitted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from swarm.common.child_process import socket_at_stdin
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters, Repeats
from swarm.transport.node_transport import NodeTransport
from swarm.transport.records import RecordRule
from swarm.transport.subprocess.link import Link
from swarm.transport.transport import HandlerLimits

SHARE = 0.05  # fraction of all cores that this process may run on
LEAST = 0.2  # cores; with half of this, a flood of streams left one request in ten unanswered
SAVED_SECONDS = 2.0  # maximum saved CPU time, for the start and other bursts
CPU_LOOK_SECONDS = 0.1
WORK_SECONDS = 0.005
LONGEST_PAUSE = 0.15  # seconds: an answer takes a few pauses and has about one second
LOOK_SECONDS = 0.5


class Allowance:
    """A CPU budget that grows by ``rate`` seconds per second, up to a bound."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._left = SAVED_SECONDS
        self._used = 0.0
        self._at = now

    def pause(self, used: float, now: float) -> float:
        """Return seconds to pause, given CPU seconds ``used`` and monotonic time ``now``."""
        self._left += self._rate * (now - self._at) - (used - self._used)
        self._left = min(self._left, SAVED_SECONDS)
        self._used, self._at = used, now
        return min(LONGEST_PAUSE, max(0.0, -self._left / self._rate))


class Meter:
    """CPU time of this process, from now on, and of its successive daemons."""

    def __init__(self, daemon: Callable[[], int | None]) -> None:
        self._find = daemon
        self._begun = time.process_time()
        self._earlier = self._present = 0.0
        self.daemon: psutil.Process | None = None

    def read(self) -> float:
        """Return the CPU seconds so far."""
        pid = self._find()
        if pid != (self.daemon.pid if self.daemon else None):
            self._earlier, self._present = self._earlier + self._present, 0.0
            self.daemon = None
        with suppress(psutil.NoSuchProcess):
            if pid is not None:
                self.daemon = self.daemon or psutil.Process(pid)
                times = self.daemon.cpu_times()
                self._present = float(times.user + times.system)
        return time.process_time() - self._begun + self._earlier + self._present


async def throttle_cpu(
    daemon: Callable[[], int | None],
    counters: Counters,
    stand_still: Callable[[float], None] = time.sleep,
) -> None:
    """Keep this process and its daemon within their CPU share, until cancelled.

    This works on Linux only: elsewhere a stopped daemon survives when its parent is killed.
    """
    if sys.platform != "linux":
        return
    allowance = Allowance(max(LEAST, SHARE * len(os.sched_getaffinity(0))), time.monotonic())
    meter = Meter(daemon)
    interval = CPU_LOOK_SECONDS
    while True:
        await asyncio.sleep(interval)
        pause = allowance.pause(meter.read(), time.monotonic())
        interval = WORK_SECONDS if pause else CPU_LOOK_SECONDS
        if pause:
            counters.add("network_paused_seconds", pause)
            with standing_still(meter.daemon):
                stand_still(pause)


@contextmanager
def standing_still(process: psutil.Process | None) -> Iterator[None]:
    """Stop a process, if there is one, and resume it at the end."""
    with suppress(psutil.NoSuchProcess):
        if process:
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            if process:
                process.send_signal(signal.SIGCONT)


class Child:
    """A transport that the parent controls and that reports events to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters = Counters()
        self._counted: dict[str, float] = {}
        self._state: dict[str, Any] = {}
        self._transport: NodeTransport | None = None
        methods = (
            *(self.open, self.start, self.close, self.connect, self.store, self.read),
            *(self.request, self.handle, self.use_manifest, self.use_reputations, self.watch),
        )
        self.link = Link(reader, writer, {method.__name__: method for method in methods})

    @property
    def transport(self) -> NodeTransport:
        assert self._transport is not None, "open comes first"
        return self._transport

    def open(
        self, over: str, log_level: int, identity: str, peer_cache: str | None, **settings: Any
    ) -> None:
        """Create a transport of class ``over`` (``"module:name"``) from these arguments."""
        logging.getLogger("swarm").setLevel(log_level)
        module, _, name = over.partition(":")
        transport = getattr(import_module(module), name)
        transport.prepare_process()
        cache = Path(peer_cache) if peer_cache else None
        self._transport = transport(
            Path(identity), peer_cache=cache, **settings, counters=self.counters
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
        """Serve a protocol with answers of the parent."""

        async def ask(peer: str, request: bytes) -> bytes:
            return bytes(await self.link.call("answer", protocol, peer, request))

        self.transport.handle(protocol, ask, HandlerLimits(**limits))

    def use_manifest(self, signed: bytes) -> None:
        """Admit the records of one swarm."""
        self.transport.use_validator(RecordRule(signed, SystemClock(), self.counters))

    def use_reputations(self, reputations: dict[bytes, float]) -> None:
        """Replace the reputation of authors; all others are unknown."""
        self.transport.use_reputation(lambda author: reputations.get(author, 0.0))

    def watch(self, keys: list[str]) -> None:
        """Report records stored here under ``keys`` to the parent."""

        def heard(value: bytes) -> None:
            if not self.link.notify("hear", value):
                self.counters.add("records_not_reported")

        self.transport.watch(keys, heard)

    def daemon(self) -> int | None:
        return self._transport.daemon if self._transport else None

    def stand_still(self, seconds: float) -> None:
        """Block this process and all its worker threads for a while."""
        if self._transport is not None:
            self._transport.stand_still(seconds)
        time.sleep(seconds)  # blocks the event loop, too

    def look(self) -> None:
        """Send the parent what has changed since the last report."""
        if self._transport is None:
            return
        totals = self.counters.snapshot()
        deltas = {k: n - self._counted.get(k, 0.0) for k, n in totals.items()}
        deltas = {name: n for name, n in deltas.items() if n}
        if deltas and self.link.notify("count", deltas):
            self._counted = totals
        state = self._transport.state()
        if state != self._state and self.link.notify("state", state):
            self._state = state

    async def look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()


class LinkHandler(logging.Handler):
    """A log handler that sends records to the parent's log."""

    def __init__(self, link: Link, counters: Counters) -> None:
        super().__init__()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._counters = counters

    def emit(self, record: logging.LogRecord) -> None:
        line = record.name, record.levelno, self.format(record)
        if threading.get_ident() == self._thread:
            self._send(line)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, line)

    def _send(self, line: tuple[str, int, str]) -> None:
        if not self._link.notify("log", *line):
            self._counters.add("log_lines_lost")


async def main() -> None:
    """Serve until the parent closes the connection or is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=socket_at_stdin())
    child = Child(reader, writer)
    handler = LinkHandler(child.link, child.counters)
    handler.addFilter(Repeats(SystemClock()))
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    look_task = asyncio.ensure_future(child.look_again())
    throttle = asyncio.ensure_future(throttle_cpu(child.daemon, child.counters, child.stand_still))
    try:
        await child.link.run()
    finally:
        look_task.cancel()
        throttle.cancel()
        await child.close()


if __name__ == "__main__":
    asyncio.run(main())
    # Everything is closed. Unloading the libraries one by one would delay the node's exit.
    os._exit(0)
