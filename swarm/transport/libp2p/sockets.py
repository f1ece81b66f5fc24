"""TCP connections before anything is said on them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from swarm.transport.libp2p.addresses import Place

if TYPE_CHECKING:
    import trio

KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


async def reach(place: Place) -> trio.SocketStream:
    """A connection to a port.

    Raises:
        ConnectionError: with the system's word for the cause.
    """
    import trio

    try:
        return await trio.open_tcp_stream(place.host, place.port)
    except OSError as error:
        raise ConnectionError(_first_cause(error)) from error


def comes_from(tcp: trio.SocketStream) -> Place:
    """Where a connection comes from; raises ``OSError`` where it is gone already."""
    host, port = tcp.socket.getpeername()[:2]
    return Place("ip6" if ":" in host else "ip4", host, port)


def keep_alive(tcp: trio.SocketStream) -> None:
    """Have the system notice within a minute that the other side is gone without a word."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _first_cause(error: BaseException) -> str:
    """The system's word in what trio makes of it."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return _first_cause(cause.exceptions[0])
    return _first_cause(cause) if cause else getattr(error, "strerror", None) or str(error)
