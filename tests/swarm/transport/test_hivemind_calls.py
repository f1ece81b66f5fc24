"""Calls over a real daemon whose answers come too late."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.node import NodeSettings
from tests.library_privates import add_handler, cancel_with, still_reads
from tests.swarm.network_parts import identity

pytestmark = pytest.mark.processes


async def started(folder: Path, name: str) -> HivemindNode:
    key = folder / f"{name}.key"
    key.write_bytes(identity(name).export())
    key.chmod(0o600)
    settings = NodeSettings(key, ("/ip4/127.0.0.1/tcp/0",), (), 60.0)
    return await HivemindNode.start(settings, Counters())


async def test_an_answer_that_comes_while_its_call_is_given_up_leaves_the_daemon_alone(tmp_path):
    anna, ben = await started(tmp_path, "anna"), await started(tmp_path, "ben")
    given_up, answered = asyncio.Event(), asyncio.Event()
    try:

        async def late(request: bytes, peer: object) -> bytes:
            await given_up.wait()
            return request

        async def echo(request: bytes, peer: object) -> bytes:
            return request

        await add_handler(ben, "late", late)
        await add_handler(ben, "echo", echo)
        await anna.connect(ben.addresses[0])

        async def cancel(call: object) -> None:
            if not given_up.is_set():
                given_up.set()
                await answered.wait()
            await tell_daemon(call)

        tell_daemon = cancel_with(anna, cancel)
        call = asyncio.ensure_future(anna.call(ben.peer_id, "late", b"question"))
        await anna.call(ben.peer_id, "echo", b"1")
        call.cancel()
        # The answer to this one comes behind the answer that nobody waits for.
        await asyncio.gather(given_up.wait(), asyncio.sleep(0.5))
        assert await anna.call(ben.peer_id, "echo", b"2") == b"2"
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert still_reads(anna)
    finally:
        answered.set()
        await anna.stop()
        await ben.stop()
