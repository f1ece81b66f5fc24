"""Where a dashboard listens."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

from node.config.addresses import host_and_port
from node.errors import NodeError

HOST, PORT = "127.0.0.1", 8710
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What stands for every address of a machine, and one of these."""
PORTS = 100
"""Tried one after the other where no port is named."""
BACKLOG = 128
KEY = "monitor.dashboard"


@dataclass(frozen=True, slots=True)
class Place:
    """A socket that listens.

    Attributes:
        host: as it was asked for, a name or an address.
        port: that was found.
        private: whether only this machine reaches it.
    """

    socket: socket.socket
    host: str
    port: int
    private: bool

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        host = ANY.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/"


def listen(wanted: bool | str, key: str = KEY) -> Place:
    """Listen where the config asks for it: True is this machine alone, on the next free port.

    Args:
        key: of the config, that asks.

    Raises:
        ConfigError: it is no ``host:port``.
        NodeError: the port is taken, or the address is none of this machine.
    """
    if isinstance(wanted, str):
        host, port = host_and_port(key, wanted)
        return _place(host, _bound(host, port, key))
    for port in range(PORT, PORT + PORTS):
        try:
            return _place(HOST, _bound(HOST, port, key))
        except NodeError:
            if port == PORT + PORTS - 1:
                raise
    raise AssertionError("there are ports to try")


def _bound(host: str, port: int, key: str) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
    except OSError as error:
        raise _unusable(host, port, key, error) from error
    try:
        if os.name == "posix":  # Windows would let it take a port from its holder
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise _unusable(host, port, key, error) from error
    return listening


def _place(host: str, listening: socket.socket) -> Place:
    address, port, *_ = listening.getsockname()
    return Place(listening, host, port, ipaddress.ip_address(address).is_loopback)


def _unusable(host: str, port: int, key: str, error: OSError) -> NodeError:
    what, other = "the swarm's page", "or 0 for any that is free."
    if key == KEY:
        what, other = "the dashboard", "or true for the next that is free."
    return NodeError(
        f"cannot serve {what} ({error.strerror or error})",
        f"{key} = {host}:{port}",
        f"Stop what holds that port, or name another one, {other}",
    )
