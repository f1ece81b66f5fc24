"""What a transport asks of the node below it: one identity's connections and hash table."""

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
from swarm.transport.request_limits import Guests
from swarm.transport.transport import TransportError, is_relayed

Role = Literal["public", "private", ""]
"""What a node takes itself for: dialled and a relay for others; behind relays; it guesses."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node runs.

    Attributes:
        identity: libp2p private key file.
        listen: multiaddresses to listen on.
        announce: multiaddresses told to others instead of the ones listened on.
        start_timeout: seconds for it to come up.
        role: what others are told of it.
        relays: addresses of peers that relay for this one in the role "private".
    """

    identity: Path
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    start_timeout: float
    role: Role = ""
    relays: tuple[str, ...] = ()

    @property
    def client(self) -> bool:
        """Whether the node asks the hash table and holds nothing of it."""
        return self.role == "private"


StreamHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""(peer id, reader, writer) of an incoming stream."""


class Node(Protocol):
    """Lives until it fails or is stopped; decides and retries nothing."""

    @property
    def peer_id(self) -> str:
        """Base58 libp2p peer id."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddresses as last looked at, those through relays first."""

    @property
    def gate(self) -> RecordGate:
        """Where the check of records is set."""

    @property
    def daemon(self) -> int | None:
        """Process id of the daemon below it; None where there is none."""

    async def connect(self, address: str) -> tuple[str, float]:
        """Dial a peer and meet it in the hash table: its id, and its clock in unix seconds.

        Raises:
            PeerUnreachable
        """

    async def find_neighbours(self) -> None:
        """Fill the routing table with the nodes nearest to this one."""

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Full addresses of the peers connected, by peer id."""

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        """Addresses that a peer's connections come from or go to, whatever it says itself."""

    async def look(self) -> None:
        """Bring the addresses up to date: those through relays come and go."""

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer, and its streams with them."""

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Whether at least one replica took the record."""

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Records under ``key``, merged over its replicas."""

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of ``protocol``."""

    async def open_stream(
        self, peer: str, protocol: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to ``peer``, dialling it if need be.

        Raises:
            PeerUnreachable
        """

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        """What a peer's handler of that name answers; :class:`Refused` where it does not."""

    def stand_still(self, seconds: float) -> None:
        """Let the threads that it has of its own stand still for a while."""

    def end(self) -> None:
        """Come to an end, so that whoever watches it starts another."""

    async def wait_dead(self) -> str:
        """Return when it has failed, with what happened."""

    async def stop(self) -> None:
        """Leave nothing of it on the machine."""

    def at_same_port(self, settings: NodeSettings) -> NodeSettings:
        """``settings`` with the port that was drawn for ``/tcp/0`` written into ``listen``."""


Launch = Callable[[NodeSettings, Counters, Any, Guests], Awaitable[Node]]
"""Starts a node, in place of a dead one of its kind or None. Raises ``TransportError``."""


logger = logging.getLogger(__name__)

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
"""Runs a daemon, the command behind it, as the same process in a new session.

On Linux it is killed with the thread that started it, even while it stands still. It gets one core,
which is enough for thousands of calls a second, and collects its garbage twice as often as Go does
by itself: a flood left it three times as large.
"""


class DaemonFailed(TransportError):  # noqa: N818
    """p2pd did not start."""

    code = "daemon_failed"


class PortTaken(TransportError):  # noqa: N818
    """Another process listens where this node was told to."""

    code = "port_taken"


def check_ports(listen: Iterable[str]) -> None:
    """Refuse TCP ports that somebody listens on.

    p2pd binds with ``SO_REUSEPORT`` and would start on such a port without a word, each of the two
    processes then getting some of the connections.

    Raises:
        PortTaken
    """
    for address in listen:
        parts = address.strip("/").split("/")
        if len(parts) != 4 or parts[0] not in ("ip4", "ip6") or parts[2] != "tcp":
            continue
        family = socket.AF_INET6 if parts[0] == "ip6" else socket.AF_INET
        with socket.socket(family) as probe:
            if os.name == "posix":  # Windows would let it take a port from its holder
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((parts[1], int(parts[3])))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortTaken(
                        f"network.listen = {address}: another process uses port {parts[3]}; "
                        "stop it, or choose another port (0 draws a free one)"
                    ) from error
                raise PortTaken(
                    f"network.listen = {address}: {error.strerror}; "
                    "use an address of this machine, 0.0.0.0 for all"
                ) from error


def sweep_sockets(folder: Path = Path("/tmp")) -> int:
    """Remove sockets whose daemon was killed; the number removed. Live and young ones stay."""
    removed = 0
    for path in folder.glob(SOCKET_PATTERN):
        try:
            if time.time() - path.stat().st_mtime > STALE_SECONDS and not _answers(path):
                path.unlink()
                removed += 1
        except OSError as error:
            logger.debug("left %s in place: %s", path, error)
    return removed


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def with_port_of(visible: Sequence[str], listen: Sequence[str]) -> tuple[str, ...]:
    """``listen`` with the port that was drawn for ``/tcp/0``, as in the addresses ``visible``."""
    own = (address for address in visible if "/tcp/" in address and not is_relayed(address))
    drawn = next((address.split("/tcp/")[1] for address in own), "0/")
    port = drawn.split("/")[0]
    return tuple(
        f"{address[: -len('/tcp/0')]}/tcp/{port}" if address.endswith("/tcp/0") else address
        for address in listen
    )
