"""Which of the announced neighbors a node dials."""

import asyncio
import random
from ipaddress import ip_interface

import pytest

from experiments.virtual_clock import VirtualClock
from swarm import lan, sightings
from swarm.lan import Neighbours, networks
from swarm.sightings import BadSighting, Sighting, sightings_of, text_of
from tests.swarm.network_parts import identity

OURS, OTHER = "aa" * 32, "bb" * 32


def peer_id(name: object) -> str:
    return identity(str(name)).peer_id


def seen(name: object, host: str = "10.0.0.1", swarm: str = OURS, port: int = 4001) -> Sighting:
    return Sighting(peer_id(name), swarm, host, port)


def neighbours(clock: VirtualClock | None = None) -> Neighbours:
    return Neighbours(peer_id("me"), clock or VirtualClock(), random.Random(1))


def test_node_dials_only_unconnected_members_other_than_itself():
    anna, bert = seen("anna", "10.0.0.1"), seen("bert", "10.0.0.2")
    nodes = [anna, bert, seen("me", "10.0.0.3"), seen("stranger", "10.0.0.4", OTHER)]
    assert set(neighbours().due(nodes, (), OURS)) == {anna, bert}
    assert neighbours().due(nodes, [anna.peer_id], OURS) == [bert]
    assert len(neighbours().due(nodes, ())) == 3


def test_host_with_1000_names_takes_no_dial_turns_from_others():
    flood = [seen(f"mallory {number}", "10.0.0.66") for number in range(1000)]
    honest = [seen(name, f"10.0.0.{name}") for name in range(1, 5)]
    dialed = neighbours().due([*flood, *honest], (), OURS)
    assert set(honest) < set(dialed)
    assert len(dialed) == len(honest) + lan.EACH
    nodes = [seen(number, f"10.0.{number // 250}.{number % 250}") for number in range(1000)]
    assert len(neighbours().due(nodes, (), OURS)) == lan.AT_A_TIME


def test_unreachable_peer_is_redialed_after_increasing_pauses(clock) -> None:
    local, gone = neighbours(clock), seen("gone")
    for pause in (lan.FIRST_REDIAL_PAUSE, 2 * lan.FIRST_REDIAL_PAUSE):
        assert local.due([gone], (), OURS) == [gone]
        local.failed(gone)
        asyncio.run(clock.advance(pause - 1))
        wrong, right = seen("anna", port=4002), seen("anna", port=4001)
        local.failed(wrong)
        assert local.due([gone, wrong, right], (), OURS) == [right], "a wrong port delays no other"
        asyncio.run(clock.advance(2))


def test_node_dials_only_enough_peers_and_replaces_lost_ones():
    local = neighbours()
    many = [seen(number, f"10.0.0.{number}") for number in range(2 * lan.ENOUGH)]
    for each in many[: lan.ENOUGH]:
        local.reached(each)
    connected = [each.peer_id for each in many[: lan.ENOUGH]]
    assert local.due(many, connected, OURS) == []
    assert len(local.due(many, connected[1:], OURS)) == 1


PEER = peer_id("anna")
SWARM = bytes(range(32))
HERE = ip_interface("192.168.7.2/24"), ip_interface("fd00:7::2/64")
TEXT = text_of(PEER, SWARM)


def test_nearby_node_yields_one_sighting_per_address_on_a_shared_network():
    hosts = ["192.168.7.9", "10.0.0.9", "fd00:7::9", "fd00:8::9"]
    later = {**TEXT, b"later": b"\xff", b"flag": None}
    first, second = result = sightings_of(TEXT, 31337, hosts, HERE)
    assert first.address == f"/ip4/192.168.7.9/tcp/31337/p2p/{PEER}"
    assert second.address == f"/ip6/fd00:7::9/tcp/31337/p2p/{PEER}"
    assert first.swarm == second.swarm == SWARM.hex()
    assert sightings_of(later, 31337, hosts, HERE) == result, "keys of later releases are ignored"
    many = [f"192.168.7.{number}" for number in range(1, 255)]
    assert len(sightings_of(TEXT, 31337, many, HERE)) == sightings.MAX_HOSTS


HEX, WORD = SWARM.hex().encode(), PEER.encode()
WRONG = {
    "version": [{b"v": value} for value in (b"2", None)],
    "swarm": [{b"swarm": value} for value in (b"00" * 31, HEX.upper(), HEX + b"\n", None)],
    "peer": [{b"peer": v} for v in (b"12D3KooW", b"\xff" * 52, WORD + b"/p2p-circuit", None)],
    "port": [None, 0, 22, 65536],
    "host": [[], ["192.168.8.9"], ["8.8.8.8", "127.0.0.1", "fe80::1", "seed.local"]],
}


@pytest.mark.parametrize(("reason", "wrong"), [(r, w) for r, each in WRONG.items() for w in each])
def test_malformed_announcement_names_its_reason(reason, wrong):
    text = {**TEXT, **wrong} if reason in ("version", "swarm", "peer") else TEXT
    port = wrong if reason == "port" else 31337
    hosts = wrong if reason == "host" else ["192.168.7.9"]
    with pytest.raises(BadSighting) as error:
        sightings_of(text, port, hosts, HERE)
    assert str(error.value) == reason


def test_node_listening_on_loopback_uses_only_the_loopback_network():
    (alone,) = networks(["/ip4/127.0.0.1/tcp/31337"])
    assert str(alone.ip) == "127.0.0.1"
    everywhere = networks(["/ip4/0.0.0.0/tcp/31337", "/ip6/::/tcp/31337"])
    assert len({each.ip.is_loopback for each in everywhere}) <= 1
    assert networks(["/ip4/203.0.113.77/tcp/31337"]) == ()
