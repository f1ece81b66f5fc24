"""Multiaddresses of TCP ports: parsing, own addresses, ``/dnsaddr`` lookup."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import ip_address

import psutil

from protocol.identity import decode_base58, encode_base58
from swarm.common.fair_limits import holder_of
from swarm.transport.protobuf import varint_at
from swarm.transport.transport import CIRCUIT

HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
EVERYWHERE = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}
LONGEST = 400
MOST_PARTS = 5  # of a binary address: a host, a port, a relay, that it relays, and a peer
LONGEST_RAW = 64
LONGEST_TEXT = 96

logger = logging.getLogger(__name__)

NAMED = "/dnsaddr/"
RECORD = "dnsaddr="
SECONDS = 4.0
MOST_NESTED = 3
MOST_NAMES = 8
MOST_ADDRESSES = 16


@dataclass(frozen=True, slots=True)
class HostPort:
    """A TCP port of a host, or of the relay (a peer id) if ``relay`` is set."""

    kind: str
    host: str
    port: int
    relay: str = ""

    @property
    def source(self) -> str:
        """Common part of connections from here: their relay, or their machine."""
        return self.relay or (self.kind == "ip6" and holder_of(self.host)) or self.host

    @property
    def numeric(self) -> bool:
        """Whether the host is an IP address: this node looks up no name that peers claim."""
        return self.kind in ("ip4", "ip6")

    def __str__(self) -> str:
        suffix = f"/p2p/{self.relay}{CIRCUIT}" if self.relay else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{suffix}"


def place_of(address: str) -> HostPort:
    """Parse a TCP multiaddress through at most one relay; raises ``ValueError``."""
    first, circuit, last = address.partition(CIRCUIT)
    base, _, peer = first.partition("/p2p/")
    _, kind, host, tcp, port, *extra = [*base.split("/"), "", "", "", ""]
    if kind not in HOSTS or tcp != "tcp" or not host or any(extra) or len(address) > LONGEST:
        raise ValueError("no address of this kind can be dialed")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{port!r} is not a port")
    if not circuit:
        return HostPort(kind, host, int(port))
    if CIRCUIT in last or not (last == "" or last.startswith("/p2p/")):
        raise ValueError("an address through more than a relay")
    peer_id_bytes(peer)
    return HostPort(kind, host, int(port), peer)


def seen_at(listening: Sequence[HostPort]) -> tuple[str, ...]:
    """Return this machine's addresses at which others may reach the listeners."""
    addresses: dict[str, None] = {}
    for place in listening:
        family = EVERYWHERE.get(place.host)
        hosts = [place.host] if family is None else _own(family)
        addresses |= dict.fromkeys(str(HostPort(place.kind, host, place.port)) for host in hosts)
    return tuple(addresses)


def _own(family: int) -> list[str]:
    hosts = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == family and "%" not in address.address
    ]
    return sorted(hosts, key=lambda host: not host.startswith(("127.", "::1")))


@lru_cache(maxsize=4096)  # decoding takes longer than the rest of an answer with 20 of them
def peer_id_bytes(peer: str) -> bytes:
    """Decode a PeerID; raises ``ValueError``."""
    raw = decode_base58(peer) if len(peer) <= LONGEST_TEXT else None
    if not raw:
        raise ValueError(f"{peer[:LONGEST_TEXT]!r} is not a PeerID")
    return raw


def peer_id_text(peer: bytes) -> str:
    """Encode a PeerID in base58; raises ``ValueError`` if it is too long."""
    if not 0 < len(peer) <= LONGEST_RAW:
        raise ValueError(f"a PeerID of {len(peer)} bytes")
    return encode_base58(peer)


# Codes of multiaddresses, with the bytes of a value; None: behind a length.
_PARTS: dict[int, tuple[str, int | None]] = {
    4: ("ip4", 4),
    6: ("tcp", 2),
    41: ("ip6", 16),
    53: ("dns", None),
    54: ("dns4", None),
    55: ("dns6", None),
    290: ("p2p-circuit", 0),
    421: ("p2p", None),
}


def address_of(data: bytes) -> str:
    """Return a binary multiaddress of TCP as text; empty for any other, or a long one.

    Peers choose it, and the library takes milliseconds for some.
    """
    if len(data) > LONGEST:
        return ""
    try:
        return "".join(_parts(data))
    except (KeyError, IndexError, ValueError):
        return ""


def _parts(data: bytes) -> Iterator[str]:
    offset = 0
    for _ in range(MOST_PARTS):
        if offset == len(data):
            return
        code, offset = varint_at(data, offset)
        name, size = _PARTS[code]
        if size is None:
            size, offset = varint_at(data, offset)
        value, offset = data[offset : offset + size], offset + size
        if len(value) < size:
            raise ValueError("an address that ends early")
        yield f"/{name}{_value(name, value)}"
    if offset < len(data):
        raise ValueError("an address of too many parts")


def _value(name: str, value: bytes) -> str:
    if name == "tcp":
        return f"/{int.from_bytes(value, 'big')}"
    if name in ("ip4", "ip6"):
        return f"/{ip_address(value)}"
    if name == "p2p":
        return f"/{peer_id_text(value)}"
    return f"/{value.decode()}" if value else ""


async def numeric(place: HostPort) -> HostPort:
    """Resolve a place's host to its first IP address; raises ``OSError``, ``ValueError``."""
    if place.numeric:
        return place
    family = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(place.kind, socket.AF_UNSPEC)
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(place.host, place.port, family=family, type=socket.SOCK_STREAM)
    host = str(infos[0][4][0])
    return replace(place, kind="ip6" if ":" in host else "ip4", host=host)


async def announced(address: str) -> str:
    """Return an address of this node with its host's IP address, if that can be resolved."""
    try:
        place = place_of(address)
        return address if place.numeric else str(await numeric(place))
    except (OSError, ValueError) as error:
        logger.warning(
            "network.announce_maddrs has an unknown host: %s (%s). Announce an IP address, because "
            "peers look up no names.",
            address,
            error,
        )
        return address


async def resolved(address: str) -> tuple[str, ...]:
    """Resolve a multiaddress to its peer's addresses; raises ``OSError`` if none."""
    addresses: dict[str, None] = {}
    names, peer = [address], address.rpartition("/p2p/")[2]
    for _ in range(MOST_NESTED + 1):
        addresses |= dict.fromkeys(name for name in names if not name.startswith(NAMED))
        names = [name for name in names if name.startswith(NAMED)][:MOST_NAMES]
        if not names:
            break
        lists = await asyncio.gather(*map(_listed, names))
        names = [item for items in lists for item in items if item.endswith(f"/p2p/{peer}")]
    if not addresses:
        raise OSError("the name is unknown, or lists no address of this peer")
    return tuple(addresses)[:MOST_ADDRESSES]


async def _listed(name: str) -> list[str]:
    from dns.asyncresolver import resolve
    from dns.exception import DNSException

    host = name.removeprefix(NAMED).partition("/")[0]
    try:
        answer = await resolve(f"_dnsaddr.{host}", "TXT", lifetime=SECONDS)
    except (DNSException, OSError) as error:
        logger.info("the addresses of %s are not known: %s", host, error)
        return []
    texts = (b"".join(record.strings).decode(errors="replace") for record in answer)
    return [text.removeprefix(RECORD) for text in texts if text.startswith(RECORD)]
