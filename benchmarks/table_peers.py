"""A hash table of real peers on this machine."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from table_records import Announcer, Shard
from table_trace import watch

from protocol.identity import Identity
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport import node_transport, supervisor
from swarm.transport.hivemind import node as hivemind_node
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.record_rule import RecordRule

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
START_SECONDS = 120.0
PATIENCE_SECONDS = 120.0
TIMES = (
    (hivemind_node, "RPC_SECONDS"),
    (node_transport, "LOOKUP_SECONDS"),
    (supervisor, "DIAL_SECONDS"),
    (supervisor, "WATCH_SECONDS"),
)
AT_A_TIME = 4
"""Of what is not counted."""

WARM_CALLS = 2
"""Reads of each peer before anything is counted, as in an epoch of a member."""


def patient() -> None:
    """Let nothing run out of time, and have the peers look after their connections seldom.

    With a hundred of them on a few cores that would be most of the work, and none of what counts.
    """
    for module, name in TIMES:
        setattr(module, name, max(getattr(module, name), PATIENCE_SECONDS))


async def few(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Make calls that are not counted, some at a time."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(call: Callable[[], Awaitable[Any]]) -> None:
        async with room:
            await call()

    await asyncio.gather(*(one(call) for call in calls))


@asynccontextmanager
async def table(nodes: int, signed: bytes) -> AsyncIterator[list[HivemindTransport]]:
    """So many peers that know one another as members after an epoch do."""
    peers: list[HivemindTransport] = []

    async def start(key: Path) -> None:
        Identity.create(key)
        first = peers[0].addresses() if peers else ()
        peer = HivemindTransport(key, listen=LISTEN, peers=first[:1], start_timeout=START_SECONDS)
        peer.use_validator(RecordRule(signed, SystemClock(), Counters()))
        await peer.start()
        watch(peer)
        peers.append(peer)

    with tempfile.TemporaryDirectory() as folder:
        keys = [Path(folder) / str(number) for number in range(nodes)]
        try:
            await start(keys[0])
            await few(lambda key=key: start(key) for key in keys[1:])
            calls = [(peer, turn) for turn in range(WARM_CALLS) for peer in peers]
            await few(lambda p=p, t=t: p.read(f"warm {id(p)} {t}") for p, t in calls)
            yield peers
        finally:
            await asyncio.gather(*(peer.close() for peer in peers))


async def fill(
    peer: HivemindTransport, announcer: Announcer, shard: Shard, authors: Sequence[Identity]
) -> None:
    """Store a record of each author in one call, as nobody does; it is not counted.

    Raises:
        RuntimeError: nobody took one of them.
    """
    records = [announcer.record(shard, author) for author in authors]
    taken = await peer.node.dht.store_many(
        [shard.key] * len(authors),
        [value for value, _ in records],
        [expiry for _, expiry in records],
        subkeys=[author.author for author in authors],
    )
    if not all(taken.values()):
        raise RuntimeError(f"nobody took a record of {shard.key}: give the machine less to do")
    for author, (value, _) in zip(authors, records, strict=True):
        shard.records[author.author] = len(value)
