"""Views of nodes for the tests of real routers."""

from typing import Any

from tests.end_to_end.watching import wait_until
from tests.routers.member import Member


def way(node: Member) -> str:
    return str(node.status().get("reach", {}).get("way", ""))


def relays(node: Member) -> set[str]:
    addresses = node.status().get("addresses", [])
    return {each.split("/p2p/")[1].split("/")[0] for each in addresses if "/p2p-circuit" in each}


def peer(node: Member, other: Member) -> dict[str, Any]:
    """Return what a node's status says about another; empty if it does not know it."""
    peers = node.status().get("peers", [])
    return next((each for each in peers if each["peer_id"] == other.peer_id), {})


def admitted(node: Member, other: Member) -> int:
    return int(peer(node, other).get("admitted", 0))


def wait_for_way(wanted: str, *nodes: Member) -> None:
    """Wait until each node reports that other peers reach it in this way."""
    for node in nodes:
        wait_until(lambda n=node: way(n) == wanted, node, f"to be {wanted}")


def wait_for_groups_both_ways(first: Member, second: Member, groups: int = 2) -> None:
    """Wait until each node has admitted this many more groups of the other."""
    before = {node.folder: admitted(node, of) for node, of in ((first, second), (second, first))}
    for node, of in ((first, second), (second, first)):
        most = before[node.folder] + groups
        wait_until(lambda n=node, o=of, m=most: admitted(n, o) >= m, node, f"{groups} more groups")
