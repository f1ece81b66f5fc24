"""Multiaddresses of TCP ports: whom to dial where, and which ones others are told."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
EVERYWHERE = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}
LONGEST = 400


@dataclass(frozen=True, slots=True)
class Place:
    """A TCP port of a host, by address or by name."""

    kind: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"/{self.kind}/{self.host}/tcp/{self.port}"


def place_of(address: str) -> Place:
    """Where a multiaddress leads, with or without a peer at its end.

    Raises:
        ValueError: somewhere that is not TCP, or nowhere.
    """
    bare = address.partition("/p2p/")[0]
    _, kind, host, tcp, port, *rest = [*bare.split("/"), "", "", "", ""]
    if kind not in HOSTS or tcp != "tcp" or not host or any(rest) or len(address) > LONGEST:
        raise ValueError("no address of this kind can be dialled")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{port!r} is no port")
    return Place(kind, host, int(port))


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
