"""Two nodes behind different routers learn from each other, whatever the routers let in."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.end_to_end.watching import externals, wait_until
from tests.routers.looking import wait_for_groups_both_ways, way

pytestmark = pytest.mark.processes


def test_groups_flow_both_ways_between_nodes_behind_two_routers(village) -> None:
    village.seed()
    kinds = "port-restricted", "symmetric"
    nodes = [village.node(f"node{n}", behind=kind) for n, kind in enumerate(kinds)]
    wait_for_groups_both_ways(*nodes)
    for node in nodes:
        assert way(node) == "relayed"
        wait_until(lambda n=node: externals(n) >= 2, node, "external groups in updates")


def test_a_node_without_a_daemon_is_relayed_for_and_dials_through_relays(village) -> None:
    if find_spec("libp2p") is None:
        pytest.skip("libp2p is not installed: pip install 'swarm-node[libp2p]'")
    village.seed()
    node = village.node("node", behind="port-restricted", network__transport="libp2p")
    other = village.node("other", behind="symmetric")
    wait_for_groups_both_ways(node, other)
    assert way(node) == way(other) == "relayed"
