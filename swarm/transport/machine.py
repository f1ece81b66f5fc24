"""What this machine must grant before a daemon starts: its ports, and a temp folder kept clean."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from swarm.transport.reach import is_relayed
from swarm.transport.transport import TransportError

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
