"""Whether others can dial this node, as far as their answers tell: values and a pure judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Literal

from protocol.messages import DialledBack
from swarm.transport.timing import Timing

Way = Literal["direct", "relayed", "unreachable", "unknown"]
"""Dialled at its own address; through another peer; not at all; nobody has tried yet."""

CIRCUIT = "/p2p-circuit"


@dataclass(frozen=True, slots=True)
class Reach:
    """How others reach this node, and it them.

    Attributes:
        way: how others reach it.
        cause: why it is so, in one line; empty while unknown.
        remedy: what would make it direct; empty where it is.
        links: how each connected peer is reached, by peer id.
        timings: how far away each is and how its clock goes, where that was measured.
    """

    way: Way = "unknown"
    cause: str = ""
    remedy: str = ""
    links: Mapping[str, Way] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)


def reach_of(state: Mapping[str, Any]) -> Reach:
    """What :func:`dataclasses.asdict` made of one, by way of another process."""
    timings = {peer: Timing(*timing) for peer, timing in state.get("timings", {}).items()}
    return Reach(**{**state, "timings": timings})


def is_relayed(address: str) -> bool:
    """Whether a multiaddress leads through a relay."""
    return CIRCUIT in address


def host_of(address: str) -> str:
    """The IP address that a multiaddress begins with; empty when it begins with none."""
    _, family, host, *_ = [*address.split("/"), "", "", ""]
    return host if family in ("ip4", "ip6") else ""


def port_of(address: str) -> int:
    """The TCP port that a multiaddress names first; 0 when it names none."""
    _, _, _, kind, port, *_ = [*address.split("/"), "", "", "", "", ""]
    return int(port) if kind == "tcp" and port.isdecimal() else 0


def links_of(connected: Mapping[str, Sequence[str]]) -> dict[str, Way]:
    """How each peer is connected, by its addresses; direct where any connection is."""
    return {
        peer: "relayed" if all(map(is_relayed, addresses)) else "direct"
        for peer, addresses in connected.items()
    }


def dialled(answers: Sequence[DialledBack]) -> bool:
    """Whether a node can be dialled, by what its peers say who tried.

    Peers that saw it at a public address count alone where there are any: others are on this side
    of its router. Half of them have to have reached it, so that one liar among three decides
    nothing.
    """
    outside = [answer for answer in answers if ip_address(answer.host).is_global]
    counted = outside or answers
    return 2 * sum(bool(answer.open) for answer in counted) >= len(counted)


def told(way: Way, ports: Sequence[int], hosts: Sequence[str], relays: int) -> Reach:
    """The state in words that a person can act on.

    Args:
        ports: that the node listens on or announces.
        hosts: the addresses that it was seen at.
        relays: peers that relay for it.
    """
    port, seen = ports[0] if ports else 0, " and ".join(dict.fromkeys(hosts))
    if way == "direct":
        return Reach(way, f"peers dialled it at {seen}")
    if way == "unknown":
        return Reach(way, "no peer has tried to dial it yet")
    through = f"{relays} of its peers relay{'s' if relays == 1 else ''} for it"
    cause = f"no peer could dial {seen} at TCP port {port}"
    remedy = (
        f"Have the router forward TCP port {port} to this machine and the firewall let it in; "
        "fix the port in network.listen."
    )
    if way == "relayed":
        return Reach(way, f"{cause}; {through}", remedy)
    return Reach(way, f"{cause}; no peer relays for it yet, so that it only asks", remedy)
