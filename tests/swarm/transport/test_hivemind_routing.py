"""One peer in a routing table has one node id."""

from __future__ import annotations

from types import SimpleNamespace

from swarm.common.clock import VirtualClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.dht import SAME_ID_SECONDS, OneIdEach
from swarm.transport.request_limits import PeerLimits


def routing(clock: VirtualClock):
    from hivemind.dht.routing import DHTID, RoutingTable

    table = RoutingTable(DHTID.generate("anna"), 20, 5)

    async def update(node_id, peer_id, responded=True) -> None:
        if responded:
            table.add_or_update_node(node_id, peer_id)
        elif node_id in table:
            del table[node_id]

    counters = Counters()
    protocol = SimpleNamespace(routing_table=table, update_routing_table=update)
    return (
        table,
        OneIdEach(protocol, counters, PeerLimits(clock, counters)),
        counters,
        DHTID.generate,
    )


async def test_flo_has_one_place_in_the_routing_table_however_many_ids_she_claims() -> None:
    clock = VirtualClock()
    table, one, counters, made = routing(clock)
    for n in range(500):
        await one.update(made(f"flo {n}"), "flo")
    assert (len(table.uid_to_peer_id), counters.snapshot()["routing_refused"]) == (1, 499)
    await clock.advance(SAME_ID_SECONDS)
    await one.update(made("restarted"), "flo")
    assert list(table.uid_to_peer_id) == [made("restarted")]


async def test_mallory_does_not_take_the_id_of_another_peer() -> None:
    table, one, _, made = routing(VirtualClock())
    await one.update(made("ben"), "ben")
    await one.update(made("ben"), "mallory")
    assert table.uid_to_peer_id == {made("ben"): "ben"}


async def test_a_crowd_of_peers_waits_in_a_bounded_list() -> None:
    table, one, _, made = routing(VirtualClock())
    for n in range(3000):
        await one.update(made(f"sybil {n}"), f"sybil {n}")
    waiting = sum(len(bucket.replacement_nodes) for bucket in table.buckets)
    assert waiting <= 20 * len(table.buckets)
    assert len(table.peer_id_to_uid) <= 2 * 20 * len(table.buckets)
