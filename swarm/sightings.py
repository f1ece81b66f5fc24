"""Announcements of nodes on a local network: their text, and the sightings in it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.errors import BadKey
from protocol.identity import author_of

VERSION = b"1"
LOWEST_PORT = 1024  # lower ones belong to system services, which no announcement may have dialed
HIGHEST_PORT = 65535
MAX_HOSTS = 4  # maximum addresses per name
_SWARM = re.compile(rb"[0-9a-f]{64}")

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class BadSighting(Exception):  # noqa: N818 - reads as what it says
    """A name without a node to dial; its text (snake_case) is counted as the reason."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node as announced, unverified: base58 peer id, swarm id in hex, IP, TCP port."""

    peer_id: str
    swarm: str
    host: str
    port: int

    @property
    def address(self) -> str:
        family = "ip6" if ":" in self.host else "ip4"
        return f"/{family}/{self.host}/tcp/{self.port}/p2p/{self.peer_id}"


def text_of(peer_id: str, swarm: bytes) -> dict[bytes, bytes]:
    """Return the TXT record of this node."""
    return {b"v": VERSION, b"peer": peer_id.encode(), b"swarm": swarm.hex().encode()}


def sightings_of(
    text: Mapping[bytes, bytes | None],
    port: int | None,
    hosts: Sequence[str],
    networks: Sequence[Interface],
) -> tuple[Sighting, ...]:
    """Parse a name's records, one sighting per address; raises ``BadSighting``.

    Addresses outside of ``networks`` are never dialed. ``port`` is that of the SRV record or None.
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
    near_hosts = [host for host in hosts[:MAX_HOSTS] if _is_near(host, networks)]
    if not near_hosts:
        raise BadSighting("host")
    return tuple(Sighting(peer_id, swarm.decode(), host, port) for host in near_hosts)


def _is_near(host: str, networks: Sequence[Interface]) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in interface.network for interface in networks)
