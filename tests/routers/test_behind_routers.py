"""Nodes behind all kinds of routers exchange groups and report their reachability."""

import json
from importlib.util import find_spec

import pytest

from tests.end_to_end.watching import externals, wait_until
from tests.routers.laboratory import FORWARDED
from tests.routers.looking import admitted, peer, relays, wait_for_groups_both_ways, wait_for_way
from tests.routers.member import Member

pytestmark = pytest.mark.processes

OBSERVERS = 4
"""Peers that must see a node at one address before its daemon accepts the address."""


def test_nodes_behind_two_routers_exchange_groups(village) -> None:
    village.seed()
    kinds = "port-restricted", "symmetric"
    nodes = [village.node(f"node{n}", behind=kind) for n, kind in enumerate(kinds)]
    wait_for_groups_both_ways(*nodes)
    wait_for_way("relayed", *nodes)
    for node in nodes:
        wait_until(lambda n=node: externals(n) >= 2, node, "external groups in updates")


def test_libp2p_node_is_reached_and_dials_through_relays(village) -> None:
    if find_spec("libp2p") is None:
        pytest.skip("libp2p is not installed: pip install 'swarm-node[libp2p]'")
    village.seed()
    node = village.node("node", behind="port-restricted", network__transport="libp2p")
    other = village.node("other", behind="symmetric")
    wait_for_groups_both_ways(node, other)
    wait_for_way("relayed", node, other)


def test_ipv6_swarm_exchanges_groups(village) -> None:
    seed = village.seed(ipv6=True)
    nodes = [village.node(f"node{n}", network__listen=["/ip6/::/tcp/0"]) for n in range(2)]
    wait_for_groups_both_ways(*nodes)
    wait_for_way("direct", *nodes)
    assert all("/ip6/" in address for address in seed.status()["addresses"])


def test_node_is_reachable_after_its_router_changes_address(village) -> None:
    village.seed()
    router = village.laboratory.router("port-restricted")
    moved = village.node("moved", behind=router)
    other = village.node("other", behind="symmetric")
    wait_for_way("relayed", moved)
    wait_for_groups_both_ways(moved, other)
    village.laboratory.renumber(router)
    wait_for_way("unreachable", moved)
    wait_for_way("relayed", moved)
    wait_for_groups_both_ways(moved, other)


def test_nodes_replace_a_dead_relay(village) -> None:
    first = village.seed("first")
    nodes = [village.node(f"node{n}", behind="symmetric") for n in range(2)]
    for node in nodes:
        wait_until(lambda n=node: relays(n) == {first.peer_id}, node, "a relay")
    second = village.seed("second")
    for node in nodes:
        met = lambda n=node: bool(peer(n, second).get("connected"))  # noqa: E731
        wait_until(met, node, "acquaintance with the second seed")
    first.kill()
    for node in nodes:
        wait_until(lambda n=node: relays(n) == {second.peer_id}, node, "another relay")
    wait_for_groups_both_ways(*nodes)


def nodes_behind(village, kind: str) -> list[Member]:
    """Start two nodes behind routers of this kind, relayed and seen by enough peers."""
    for number in range(OBSERVERS):
        village.seed(f"seed{number}")
    nodes = [village.node(f"node{n}", behind=kind) for n in range(2)]
    wait_for_way("relayed", *nodes)
    return nodes


def wait_for_link(link: str, nodes: list[Member]) -> None:
    """Wait for this link at both ends; a connection may be down while it restarts."""
    for node, other in (nodes, nodes[::-1]):
        linked = lambda n=node, o=other: peer(n, o).get("link") == link  # noqa: E731
        wait_until(linked, node, f"a {link} connection")
    wait_for_way("relayed", *nodes)  # Other peers still need a relay.


def test_port_preserving_routers_allow_a_direct_connection(village):
    nodes = nodes_behind(village, "port-restricted")
    wait_for_link("direct", nodes)
    wait_for_groups_both_ways(*nodes, groups=1)


def test_symmetric_routers_keep_the_connection_relayed(village) -> None:
    nodes = nodes_behind(village, "symmetric")
    wait_for_groups_both_ways(*nodes, groups=1)
    wait_for_link("relayed", nodes)
    assert "direct" not in {peer(*pair).get("link") for pair in (nodes, nodes[::-1])}


def test_commands_report_relayed_nodes_and_required_forwarding(village) -> None:
    village.seed()
    inside = village.node("inside", behind="symmetric")
    listen = [f"/ip4/0.0.0.0/tcp/{FORWARDED}"]
    forwarded = village.node("forwarded", behind="forwarding", network__listen=listen)
    second = village.node("second", behind="symmetric")
    wait_for_way("direct", forwarded)
    wait_for_way("relayed", inside, second)
    for node, other in ((inside, second), (second, inside)):
        wait_until(lambda n=node, o=other: admitted(n, o) >= 1, node, "groups through the relay")
        wait_until(lambda n=node, o=other: peer(n, o).get("link") == "relayed", node, "a link")
    output = inside.tell("status")
    assert "reach     relayed: no peer could dial 11.7.0." in output
    assert "Forward TCP port" in output
    assert " relayed " in inside.tell("peers")
    findings = {each["check"]: each for each in json.loads(inside.tell("doctor", "--json"))}
    assert findings["reach"]["level"] == "warn"
    assert "Forward TCP port" in findings["reach"]["remedy"]
    assert "reach     direct: peers dialed it at 11.7.0." in forwarded.tell("status")
