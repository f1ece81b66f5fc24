"""A relay that dies is replaced by another peer."""

from __future__ import annotations

import pytest

from tests.end_to_end.watching import wait_until
from tests.routers.looking import peer, relays, wait_for_groups_both_ways

pytestmark = pytest.mark.processes


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
