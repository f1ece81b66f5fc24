"""A network without IPv4."""

from __future__ import annotations

import pytest

from tests.end_to_end.watching import wait_until
from tests.routers.looking import wait_for_groups_both_ways, way

pytestmark = pytest.mark.processes


def test_a_swarm_of_ipv6_alone_learns(village) -> None:
    seed = village.seed(ipv6=True)
    nodes = [village.node(f"node{n}", network__listen=["/ip6/::/tcp/0"]) for n in range(2)]
    wait_for_groups_both_ways(*nodes)
    for node in nodes:
        wait_until(lambda n=node: way(n) == "direct", node, "to be dialled")
    assert all("/ip6/" in address for address in seed.status()["addresses"])
