"""What one call of a transport asks of other peers, noted where it goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from swarm.transport.hivemind.transport import HivemindTransport

FIND, STORE = "DHTProtocol.rpc_find", "DHTProtocol.rpc_store"

T = TypeVar("T")


@dataclass(slots=True)
class Rpc:
    """One request that went out; ``began`` and ``ended`` count events and not time."""

    name: str
    peer: bytes
    bytes_out: int
    began: int
    ended: int = 0
    answer: bytes | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """All that one call of the transport asked of others.

    Attributes:
        known: peer ids, raw, in the caller's routing table before.
    """

    known: frozenset[bytes] = frozenset()
    rpcs: list[Rpc] = field(default_factory=list)
    events: count[int] = field(default_factory=lambda: count(1))

    def of(self, *names: str) -> list[Rpc]:
        """The requests of these names, or all."""
        return [rpc for rpc in self.rpcs if not names or rpc.name in names]

    def bytes_out(self, *names: str) -> int:
        """Bytes of requests."""
        return sum(rpc.bytes_out for rpc in self.of(*names))

    def bytes_in(self, *names: str) -> int:
        """Bytes of answers."""
        return sum(len(rpc.answer or b"") for rpc in self.of(*names))

    def hops(self) -> int:
        """Requests one after the other on the path that the end of the whole waited for.

        Back from the one that ended last, always to the one that ended last before it began.
        """
        hops, until = 0, next(self.events)
        while before := [rpc for rpc in self.rpcs if 0 < rpc.ended < until]:
            hops, until = hops + 1, max(before, key=lambda rpc: rpc.ended).began
        return hops

    def depth(self) -> int:
        """Of the peers asked, how many answers one upon the other the farthest was learned by.

        1 where the caller knew all of them before.
        """
        from hivemind.proto.dht_pb2 import FindResponse

        known = dict.fromkeys(self.known, 1)
        asked = sorted(self.of(FIND), key=lambda rpc: rpc.began)
        events = sorted(
            [(rpc.began, False, rpc) for rpc in asked] + [(rpc.ended, True, rpc) for rpc in asked],
            key=lambda event: event[0],
        )
        for _, answered, rpc in events:
            level = known.setdefault(rpc.peer, 1)
            if answered:
                for result in FindResponse.FromString(rpc.answer or b"").results:
                    for peer in result.nearest_peer_ids:
                        known.setdefault(peer, level + 1)
        return max((known[rpc.peer] for rpc in asked), default=0)


TRACE: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""Tasks inherit it: what a call sets off is its own, and what peers set off here is nobody's."""


def watch(transport: HivemindTransport) -> None:
    """Have the requests that go out of a transport noted in the present trace."""
    control = transport.node.control
    call = control.call_unary_handler

    async def noted(peer: Any, name: str, data: bytes) -> bytes:
        trace = TRACE.get()
        if trace is None:
            return bytes(await call(peer, name, data))
        rpc = Rpc(name, peer.to_bytes(), len(data), next(trace.events))
        trace.rpcs.append(rpc)
        try:
            rpc.answer = bytes(await call(peer, name, data))
            return rpc.answer
        finally:
            rpc.ended = next(trace.events)

    control.call_unary_handler = noted


async def traced(caller: HivemindTransport, call: Callable[[], Awaitable[T]]) -> tuple[T, Trace]:
    """What a call of a transport gives, and what it asked of others."""
    table = caller.node.dht.protocol.routing_table
    trace = Trace(frozenset(peer.to_bytes() for peer in table.peer_id_to_uid))
    token = TRACE.set(trace)
    try:
        return await call(), trace
    finally:
        TRACE.reset(token)
