"""Multiaddresses as a person writes them: what is none, and what to write instead."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

from node.errors import ConfigError
from protocol.errors import BadKey
from protocol.identity import author_of

_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/\s,]+)/tcp/(\d{1,5})(/[^/\s,]+)*")
_NAMED = re.compile(r"/dnsaddr/[^/\s,]+(/p2p/[^/\s,]+)")
"""A name whose TXT records ``_dnsaddr.NAME`` list addresses, port included; of the peer named."""

_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]@]+)):(\d{1,5})")
_IP = {"ip4": IPv4Address, "ip6": IPv6Address}
_HIGHEST_PORT = 65535
_PLAIN = "/ip4/10.0.0.5/tcp/31337"
_PEER = f"{_PLAIN}/p2p/12D3Koo…"


def check_addresses(key: str, addresses: tuple[str, ...]) -> None:
    """Look at the addresses of ``network.listen``, ``network.announce`` or ``network.peers``.

    Raises:
        ConfigError: one of them is no multiaddress, or none that such a key takes.
    """
    dialled = key == "network.peers"
    for address in addresses:
        if dialled and _NAMED.fullmatch(address) and _is_peer(address):
            continue
        parsed = _ADDRESS.fullmatch(address)
        if not parsed or not _has_host(parsed[1], parsed[2]) or int(parsed[3]) > _HIGHEST_PORT:
            example = _PEER if dialled else _PLAIN
            raise ConfigError(
                key, address, f"Write a multiaddress such as {example}: no URL, no host:port."
            )
        if int(parsed[3]) == 0 and key != "network.listen":
            raise ConfigError(
                key, address, "Nobody can be dialled at port 0: write the port that is listened on."
            )
        if dialled and not _is_peer(address):
            raise ConfigError(
                key,
                address,
                f"End it with /p2p/ and the peer's id, as in {_PEER}; the peer's start message "
                "shows it whole.",
            )


def host_and_port(key: str, place: str) -> tuple[str, int]:
    """Where ``host:port`` is; an IPv6 address stands in brackets.

    Raises:
        ConfigError: it is something else.
    """
    parsed = _PLACE.fullmatch(place)
    if not parsed or int(parsed[3]) > _HIGHEST_PORT:
        raise ConfigError(key, place, "Write host:port, as in 127.0.0.1:8710 or [::1]:8710.")
    return parsed[1] or parsed[2], int(parsed[3])


def _has_host(family: str, host: str) -> bool:
    try:
        return family not in _IP or bool(_IP[family](host))
    except ValueError:
        return False


def _is_peer(address: str) -> bool:
    _, named, peer = address.rpartition("/p2p/")
    try:
        author_of(peer)
    except BadKey:
        return False
    return bool(named)
