"""Two nodes behind different routers learn from each other, whatever the routers let in."""

from __future__ import annotations

import pytest

from tests.end_to_end.watching import externals, wait_until

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kinds", [("port-restricted", "symmetric")], ids="-".join)
def test_groups_flow_both_ways_between_nodes_behind_two_routers(village, kinds) -> None:
    village.seed()
    nodes = [village.node(f"node{n}", behind=kind) for n, kind in enumerate(kinds)]
    for node in nodes:
        wait_until(lambda n=node: externals(n) >= 2, node, "external groups in updates")
