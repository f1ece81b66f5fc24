"""Nodes reject false profiles of hostile members over real connections."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol import envelope
from protocol.codec import encode
from protocol.manifest import sign_manifest, swarm_id
from protocol.messages import PROFILE_STREAM
from protocol.profile import sign_profile
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.transport import HEADER_SECONDS, HandlerLimits, Refusal, Transport
from tests.swarm.network_parts import CREATOR, identity
from tests.swarm.test_member_processes import AGREED, BEN, Kind, eventually, running, told
from tests.swarm.transport.over import APART_LIBP2P

pytestmark = pytest.mark.processes

SWARM = swarm_id(sign_manifest(AGREED, CREATOR))


def answers(answer: Callable[[], Awaitable[bytes]]) -> Callable[[Transport], None]:
    """Let a member serve other bytes in place of its profile."""

    async def handler(asker: str, request: bytes) -> bytes:
        return await answer()

    return lambda transport: transport.handle(PROFILE_STREAM, handler, HandlerLimits(64, 8, 8))


@pytest.mark.parametrize("kind", [HivemindTransport, APART_LIBP2P])
def test_node_shows_honest_profiles_and_no_malicious_ones(kind: Kind, tmp_path: Path) -> None:
    bens = sign_profile(BEN, identity("ben"), SWARM)
    text = {"name": "\u202eanna\x1b[2J", "line": "", "model": "", "version": "", "made": 1.7e9}
    eves = envelope.close(envelope.PROFILE, SWARM, identity("eve"), encode(text))

    async def replayed() -> bytes:
        return bens

    async def unsafe() -> bytes:
        return eves

    async def too_long() -> bytes:
        return bytes(100_000)

    done, waiting = threading.Event(), []

    async def never() -> bytes:
        if done.is_set():
            raise Refusal("busy")
        waiting.append(done)
        await asyncio.sleep(HEADER_SECONDS + 1.0)
        waiting.pop()
        return b""

    hostile = {"mallory": replayed, "eve": unsafe, "flo": too_long, "sam": never}
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", tmp_path, kind=kind))
        addresses = anna.transport.addresses()
        for name, answer in hostile.items():
            stack.enter_context(running(name, tmp_path, *addresses, instead=answers(answer)))
        ben = stack.enter_context(running("ben", tmp_path, *addresses, profile=BEN))
        reasons = ("other_author", "bad_schema", "response_too_large", "deadline")
        for reason in reasons:
            eventually(lambda r=reason: anna.count(f"profiles_refused{{reason={r}}}"))
        eventually(lambda: told(anna).get(ben.identity.peer_id) == BEN)
        shown = [told(anna).get(identity(name).peer_id) for name in hostile]
        assert shown == [None] * len(hostile)
        done.set()
        eventually(lambda: not waiting)
        assert anna.member.failure is None
