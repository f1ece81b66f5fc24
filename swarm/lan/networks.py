"""The local networks that this machine is on, as far as a node listens there."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from socket import AF_INET, AF_INET6

import psutil

from swarm.lan.sighting import Interface
from swarm.transport.reach import host_of

FAMILIES = {AF_INET: IPv4Address, AF_INET6: IPv6Address}
MAX_INTERFACES = 16


def networks(listen: Sequence[str]) -> tuple[Interface, ...]:
    """This machine's addresses that are listened at, each with its network.

    The loopback interface counts only where there is nothing else. Link-local IPv6 addresses are
    left out: a multiaddress does not say on which interface they are.

    Args:
        listen: multiaddresses; 0.0.0.0 and :: are all of their family.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        ip_interface(f"{each.address}/{_length(each.netmask)}")
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if name in up and each.family in FAMILIES and each.netmask and "%" not in each.address
    ]
    hosts = {ip_address(host) for host in map(host_of, listen) if host}
    every = {type(host) for host in hosts if host.is_unspecified}
    heard = [each for each in found if each.ip in hosts or type(each.ip) in every]
    outside = [each for each in heard if not each.ip.is_loopback]
    return tuple(sorted(outside or heard, key=lambda each: (each.version, each.ip)))[
        :MAX_INTERFACES
    ]


def _length(netmask: str) -> int:
    """Of a prefix, in bits."""
    return int(ip_address(netmask)).bit_count()
