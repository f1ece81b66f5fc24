"""Nodes behind routers of all kinds learn from each other, and say how they are reached."""

import json
from importlib.util import find_spec

import pytest

from tests.end_to_end.watching import externals, wait_until
from tests.routers.laboratory import FORWARDED
from tests.routers.looking import (
    admitted,
    peer,
    relays,
    wait_for_groups_both_ways,
    wait_for_way,
)
from tests.routers.member import Member

pytestmark = pytest.mark.processes

OBSERVERS = 4
"""Peers that have to have seen a node at one address before its daemon takes that for its own."""


def test_groups_flow_both_ways_between_nodes_behind_two_routers(village) -> None:
    village.seed()
    kinds = "port-restricted", "symmetric"
    nodes = [village.node(f"node{n}", behind=kind) for n, kind in enumerate(kinds)]
    wait_for_groups_both_ways(*nodes)
    wait_for_way("relayed", *nodes)
    for node in nodes:
        wait_until(lambda n=node: externals(n) >= 2, node, "external groups in updates")


def test_a_node_without_a_daemon_is_relayed_for_and_dials_through_relays(village) -> None:
    if find_spec("libp2p") is None:
        pytest.skip("libp2p is not installed: pip install 'swarm-node[libp2p]'")
    village.seed()
    node = village.node("node", behind="port-restricted", network__transport="libp2p")
    other = village.node("other", behind="symmetric")
    wait_for_groups_both_ways(node, other)
    wait_for_way("relayed", node, other)


def test_a_swarm_of_ipv6_alone_learns(village) -> None:
    seed = village.seed(ipv6=True)
    nodes = [village.node(f"node{n}", network__listen=["/ip6/::/tcp/0"]) for n in range(2)]
    wait_for_groups_both_ways(*nodes)
    wait_for_way("direct", *nodes)
    assert all("/ip6/" in address for address in seed.status()["addresses"])


def test_a_node_whose_router_changes_its_address_is_reached_again(village) -> None:
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


def test_a_dead_relay_is_replaced_and_groups_flow_on(village) -> None:
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
    """Two nodes behind a router of this kind each, both relayed and seen by enough."""
    for number in range(OBSERVERS):
        village.seed(f"seed{number}")
    nodes = [village.node(f"node{n}", behind=kind) for n in range(2)]
    wait_for_way("relayed", *nodes)
    return nodes


def wait_for_link(link: str, nodes: list[Member]) -> None:
    """Wait until both are connected so; it may just be begun anew, and is not connected then."""
    for node, other in (nodes, nodes[::-1]):
        linked = lambda n=node, o=other: peer(n, o).get("link") == link  # noqa: E731
        wait_until(linked, node, f"a {link} connection")
    wait_for_way("relayed", *nodes)  # others need a relay still


def test_a_relayed_connection_becomes_direct_through_two_routers_that_keep_their_port(village):
    nodes = nodes_behind(village, "port-restricted")
    wait_for_link("direct", nodes)
    wait_for_groups_both_ways(*nodes, groups=1)


def test_through_two_symmetric_routers_it_stays_relayed_and_groups_flow(village) -> None:
    nodes = nodes_behind(village, "symmetric")
    wait_for_groups_both_ways(*nodes, groups=1)
    wait_for_link("relayed", nodes)
    assert "direct" not in {peer(*pair).get("link") for pair in (nodes, nodes[::-1])}


def test_status_peers_and_doctor_say_who_is_relayed_and_what_the_router_would_need(village) -> None:
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
    told = inside.tell("status")
    assert "reach     relayed: no peer could dial 11.7.0." in told
    assert "Forward TCP port" in told
    assert " relayed " in inside.tell("peers")
    findings = {each["check"]: each for each in json.loads(inside.tell("doctor", "--json"))}
    assert findings["reach"]["level"] == "warn"
    assert "Forward TCP port" in findings["reach"]["remedy"]
    assert "reach     direct: peers dialed it at 11.7.0." in forwarded.tell("status")
