"""The :class:`TransportNode` interface below a transport, its settings, and daemon helpers."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from swarm.common.counters import Counters
from swarm.transport.records import RecordGate
from swarm.transport.request_limits import PeerLimits
from swarm.transport.transport import TransportError, own_ports

logger = logging.getLogger(__name__)

Role = Literal["public", "private", ""]
"""``public``: can be dialed and relays; ``private``: behind relays; empty: the node guesses."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node; a port 0 is drawn once and kept over restarts."""

    identity: Path  # libp2p private key file, as protocol.identity.Identity writes it
    listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",)  # multiaddresses
    announce: Sequence[str] = ()  # multiaddresses published instead of listen
    start_timeout: float = 30.0  # seconds
    role: Role = ""  # as reported to others
    relays: tuple[str, ...] = ()  # addresses of peers that relay for it in the role "private"
    peers: Sequence[str] = ()  # full multiaddresses of bootstrap peers, dialed until they answer
    relay: bool = False  # whether it checks that peers can dial it, and uses relays if not
    peer_cache: Path | None = None  # a file of peers met before

    @property
    def client(self) -> bool:
        """Whether the node queries the DHT and stores none of it."""
        return self.role == "private"


StreamEnds = tuple[asyncio.StreamReader, asyncio.StreamWriter]
StreamHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""(peer id, reader, writer) of an incoming stream."""


class HashTable(Protocol):
    """A node's access to the DHT: records by key and author."""

    @property
    def node_id(self) -> bytes:
        """The 20-byte id under which this node stands in the routing tables of others."""

    async def find_neighbours(self) -> None:
        """Fill the routing table with the nodes nearest to this one."""

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Store a record at the nodes nearest to its key; return whether any took it."""

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Return each author's latest record under ``key``, over all nodes near it."""


class TransportNode(Protocol):
    """One identity's connections and DHT, until it fails or is stopped; no retries."""

    @property
    def peer_id(self) -> str:
        """Base58 libp2p peer id."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddresses as of the last :meth:`look`, relayed ones first."""

    @property
    def listening(self) -> tuple[str, ...]:
        """Addresses with the port drawn for ``/tcp/0``."""

    @property
    def hash_table(self) -> HashTable:
        """This node's access to the DHT."""

    @property
    def gate(self) -> RecordGate:
        """The gate that takes the check of records."""

    @property
    def daemon(self) -> int | None:
        """Process id of the daemon; None if there is none."""

    async def connect(self, address: str, *, claimed: bool = False) -> tuple[str, float]:
        """Meet a peer in the DHT; return id and unix time or raise ``PeerUnreachable``.

        ``claimed``: a peer gave the address, and not the user.
        """

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Return full addresses of the connected peers, by peer id."""

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        """Return the observed addresses of a peer's connections, not its own claims."""

    async def look(self) -> None:
        """Update the addresses: relayed ones come and go."""

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer, and its streams with them."""

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of ``protocol``."""

    async def open_stream(self, peer: str, protocol: str) -> StreamEnds:
        """Open a stream, dialing if needed; raise ``PeerUnreachable`` on failure."""

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        """Return the answer of a peer's handler; raise :class:`Refused` without one."""

    def stand_still(self, seconds: float) -> None:
        """Block the node's own threads for a while."""

    def end(self) -> None:
        """End the node, so that its supervisor starts another."""

    async def wait_dead(self) -> str:
        """Wait until the node has failed and return what happened."""

    async def stop(self) -> None:
        """Stop the node and remove everything of it from the machine."""


Launch = Callable[[NodeSettings, Counters, Any, PeerLimits], Awaitable[TransportNode]]
"""Starts a node, which replaces a dead one of its kind or None. Raises ``TransportError``."""


SOCKET_PATTERN = "hivemind-p2p*.sock"
STALE_SECONDS = 60.0

DETACHED = (
    sys.executable,
    "-ISc",
    """
import ctypes, os, sys
os.setsid()
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
for name, value in (("GOMAXPROCS", "1"), ("GOGC", "50")):
    os.environ.setdefault(name, value)
os.execv(sys.argv[1], sys.argv[1:])
""",
)
"""Command prefix that runs a daemon as the same process in a new session.

On Linux, the daemon is killed with the thread that started it, even while it is stopped. It gets
one core, enough for thousands of calls per second, and collects garbage twice as often as Go's
default, because a flood left it three times as large.
"""


class DaemonFailed(TransportError, code="daemon_failed"):  # noqa: N818
    """p2pd did not start."""


class PortTaken(TransportError, code="port_taken"):  # noqa: N818
    """Another process listens on a port of this node."""


def check_ports(listen: Iterable[str]) -> None:
    """Raise :class:`PortTaken` for TCP ports that are in use or cannot be bound.

    p2pd binds with ``SO_REUSEPORT``. It would start on a used port without an error, and each of
    the two processes would get some of the connections.
    """
    for address in listen:
        parts = address.strip("/").split("/")
        if len(parts) != 4 or parts[0] not in ("ip4", "ip6") or parts[2] != "tcp":
            continue
        if error := binding_error(parts[1], int(parts[3])):
            reason = f"{error.strerror}; use an address of this machine, 0.0.0.0 for all"
            if error.errno == errno.EADDRINUSE:
                reason = f"another process uses port {parts[3]}; stop it, or choose another port "
                reason += "(0 draws a free one)"
            raise PortTaken(f"network.listen = {address}: {reason}") from error


def binding_error(host: str, port: int) -> OSError | None:
    """Return why this machine cannot listen at an IP address and TCP port, None if it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            if os.name == "posix":  # on Windows this would take a port from its holder
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:  # without IPv6 there is not even a socket
        return error
    return None


def sweep_sockets(folder: Path = Path("/tmp")) -> int:
    """Remove old sockets of killed daemons and return how many; keep live ones."""
    count = 0
    for path in folder.glob(SOCKET_PATTERN):
        try:
            if time.time() - path.stat().st_mtime > STALE_SECONDS and not _answers(path):
                path.unlink()
                count += 1
        except OSError as error:
            logger.debug("left %s in place: %s", path, error)
    return count


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def with_port_of(visible: Sequence[str], listen: Sequence[str]) -> tuple[str, ...]:
    """Return ``listen`` with the port drawn for ``/tcp/0``, as found in ``visible``."""
    port = next(iter(own_ports(visible)), 0)
    return tuple(
        f"{address[: -len('/tcp/0')]}/tcp/{port}" if address.endswith("/tcp/0") else address
        for address in listen
    )


def task_failed(counters: Counters, error: BaseException) -> None:
    """Count and log the error of a transport's background task."""
    counters.add("transport_failures")
    logger.error("a task of the transport failed", exc_info=error)
