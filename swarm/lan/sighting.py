"""What multicast DNS tells of a node nearby: strictly read, and true only once it is dialled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address

from protocol.errors import BadKey
from protocol.identity import author_of

SERVICE = "_swarm-node._tcp.local."
VERSION = b"1"
LOWEST_PORT = 1024
"""Below are the machine's own services, which nobody has this node knock at."""

HIGHEST_PORT = 65535
MAX_HOSTS = 4
"""Addresses of one name that are looked at."""

_SWARM = re.compile(rb"[0-9a-f]{64}")

Interface = IPv4Interface | IPv6Interface


class BadSighting(Exception):  # noqa: N818 - reads as what it says
    """A name that tells of no node that could be dialled; ``reason`` (snake_case) is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node as it is said to be, by whoever is on this network.

    Attributes:
        peer_id: base58.
        swarm: id of its swarm, 64 hex digits.
        host: IP address, on a network that this machine is on.
        port: TCP.
    """

    peer_id: str
    swarm: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """Full multiaddress."""
        family = "ip6" if ":" in self.host else "ip4"
        return f"/{family}/{self.host}/tcp/{self.port}/p2p/{self.peer_id}"


def text_of(peer_id: str, swarm: bytes) -> dict[bytes, bytes]:
    """The TXT record of this node."""
    return {b"v": VERSION, b"peer": peer_id.encode(), b"swarm": swarm.hex().encode()}


def sightings_of(
    text: Mapping[bytes, bytes | None],
    port: int | None,
    hosts: Sequence[str],
    networks: Sequence[Interface],
) -> tuple[Sighting, ...]:
    """What a name's records say, once for each of its addresses; keys not known are left out.

    Args:
        text: of the TXT record.
        port: of the SRV record; None without one.
        hosts: IP addresses of the name's host.
        networks: those that this machine is on. Nobody has it dial any other.

    Raises:
        BadSighting
    """
    if text.get(b"v") != VERSION:
        raise BadSighting("version")
    swarm, peer = text.get(b"swarm") or b"", text.get(b"peer") or b""
    if not _SWARM.fullmatch(swarm):
        raise BadSighting("swarm")
    try:
        peer_id = peer.decode("ascii")
        author_of(peer_id)
    except (UnicodeDecodeError, BadKey) as error:
        raise BadSighting("peer") from error
    if port is None or not LOWEST_PORT <= port <= HIGHEST_PORT:
        raise BadSighting("port")
    near = [host for host in hosts[:MAX_HOSTS] if _is_near(host, networks)]
    if not near:
        raise BadSighting("host")
    return tuple(Sighting(peer_id, swarm.decode(), host, port) for host in near)


def _is_near(host: str, networks: Sequence[Interface]) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in interface.network for interface in networks)
