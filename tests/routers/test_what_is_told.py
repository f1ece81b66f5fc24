"""What people read about routers: who is relayed, why, and what would help."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.watching import wait_until
from tests.routers.laboratory import FORWARDED
from tests.routers.looking import admitted, peer, way

pytestmark = pytest.mark.processes


def test_status_peers_and_doctor_say_who_is_relayed_and_what_the_router_would_need(village) -> None:
    village.seed()
    inside = village.node("inside", behind="symmetric")
    forwarded = village.node(
        "forwarded", behind="forwarding", network__listen=[f"/ip4/0.0.0.0/tcp/{FORWARDED}"]
    )
    second = village.node("second", behind="symmetric")
    wait_until(lambda: way(forwarded) == "direct", forwarded, "to be dialled")
    for node, other in ((inside, second), (second, inside)):
        wait_until(lambda n=node: way(n) == "relayed", node, "a relay")
        wait_until(lambda n=node, o=other: admitted(n, o) >= 1, node, "groups through the relay")
        wait_until(lambda n=node, o=other: peer(n, o).get("link") == "relayed", node, "a link")
    told = inside.tell("status")
    assert "reach     relayed: no peer could dial 11.7.0." in told
    assert "forward TCP port" in told
    assert " relayed " in inside.tell("peers")
    findings = {each["check"]: each for each in json.loads(inside.tell("doctor", "--json"))}
    assert findings["reach"]["level"] == "warn"
    assert "forward TCP port" in findings["reach"]["remedy"]
    assert "reach     direct: peers dialled it at 11.7.0." in forwarded.tell("status")
