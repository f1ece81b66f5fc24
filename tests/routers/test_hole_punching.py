"""Whether what begins through a relay goes on without one, by what the routers on the way do."""

from __future__ import annotations

import pytest

from tests.end_to_end.watching import wait_until
from tests.routers.looking import peer, wait_for_groups_both_ways, way
from tests.routers.member import Member

pytestmark = pytest.mark.processes

OBSERVERS = 4
"""Peers that have to have seen a node at one address before its daemon takes that for its own."""


def nodes_behind(village, kind: str) -> list[Member]:
    """Two nodes behind a router of this kind each, both relayed and seen by enough."""
    for number in range(OBSERVERS):
        village.seed(f"seed{number}")
    nodes = [village.node(f"node{n}", behind=kind) for n in range(2)]
    for node in nodes:
        wait_until(lambda n=node: way(n) == "relayed", node, "a relay")
    return nodes


def test_a_relayed_connection_becomes_direct_through_two_routers_that_keep_their_port(
    village,
) -> None:
    nodes = nodes_behind(village, "port-restricted")
    for node, other in (nodes, nodes[::-1]):
        direct = lambda n=node, o=other: peer(n, o).get("link") == "direct"  # noqa: E731
        wait_until(direct, node, "a direct connection")
        assert way(node) == "relayed", "others need a relay still"
    wait_for_groups_both_ways(*nodes, groups=1)


def test_through_two_symmetric_routers_it_stays_relayed_and_groups_flow(village) -> None:
    nodes = nodes_behind(village, "symmetric")
    wait_for_groups_both_ways(*nodes, groups=1)
    for node, other in (nodes, nodes[::-1]):
        # It may just be begun anew, and is told as not connected meanwhile.
        relayed = lambda n=node, o=other: peer(n, o).get("link") == "relayed"  # noqa: E731
        wait_until(relayed, node, "a relayed connection")
        assert way(node) == "relayed"
    assert "direct" not in {peer(*pair).get("link") for pair in (nodes, nodes[::-1])}
