"""A provider gives a router another address while its node is at work."""

from __future__ import annotations

import pytest

from tests.end_to_end.watching import wait_until
from tests.routers.looking import wait_for_groups_both_ways, way

pytestmark = pytest.mark.processes


def test_a_node_whose_router_changes_its_address_is_reached_again(village) -> None:
    village.seed()
    router = village.laboratory.router("port-restricted")
    moved = village.node("moved", behind=router)
    other = village.node("other", behind="symmetric")
    wait_until(lambda: way(moved) == "relayed", moved, "a relay")
    wait_for_groups_both_ways(moved, other)
    village.laboratory.renumber(router)
    wait_until(lambda: way(moved) == "unreachable", moved, "to notice that its relay is lost")
    wait_until(lambda: way(moved) == "relayed", moved, "a relay")
    wait_for_groups_both_ways(moved, other)
