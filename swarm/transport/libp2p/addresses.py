"""Multiaddresses of TCP ports: whom to dial where, and which ones others are told."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from swarm.transport.libp2p import peer_ids
from swarm.transport.reach import CIRCUIT

HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
EVERYWHERE = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}
LONGEST = 400


@dataclass(frozen=True, slots=True)
class Place:
    """A TCP port of a host, by address or by name.

    Attributes:
        relay: peer that listens there and connects with others; empty: whoever is to be reached.
    """

    kind: str
    host: str
    port: int
    relay: str = ""

    @property
    def source(self) -> str:
        """What connections from here have in common: their relay, or their host."""
        return self.relay or self.host

    def of_relay(self) -> Place:
        """Where the relay itself is."""
        return replace(self, relay="")

    def __str__(self) -> str:
        through = f"/p2p/{self.relay}{CIRCUIT}" if self.relay else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{through}"


def place_of(address: str) -> Place:
    """Where a multiaddress leads, with or without a peer at its end.

    Raises:
        ValueError: somewhere that is neither TCP nor one relay at a TCP port, or nowhere.
    """
    first, circuit, last = address.partition(CIRCUIT)
    bare, _, peer = first.partition("/p2p/")
    _, kind, host, tcp, port, *rest = [*bare.split("/"), "", "", "", ""]
    if kind not in HOSTS or tcp != "tcp" or not host or any(rest) or len(address) > LONGEST:
        raise ValueError("no address of this kind can be dialled")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{port!r} is no port")
    if not circuit:
        return Place(kind, host, int(port))
    if CIRCUIT in last or not (last == "" or last.startswith("/p2p/")):
        raise ValueError("an address through more than a relay")
    peer_ids.raw(peer)
    return Place(kind, host, int(port), peer)


def seen_at(listening: Sequence[Place]) -> tuple[str, ...]:
    """The addresses of this machine under which others may reach what listens."""
    found: dict[str, None] = {}
    for place in listening:
        family = EVERYWHERE.get(place.host)
        hosts = [place.host] if family is None else _own(family)
        found |= dict.fromkeys(str(Place(place.kind, host, place.port)) for host in hosts)
    return tuple(found)


def _own(family: int) -> list[str]:
    own = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == family and "%" not in address.address
    ]
    return sorted(own, key=lambda host: not host.startswith(("127.", "::1")))
