"""Whom a node dials of those who are said to be nearby."""

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


def test_members_of_the_swarm_are_dialled_who_are_neither_connected_nor_oneself():
    anna, bert = seen("anna", "10.0.0.1"), seen("bert", "10.0.0.2")
    crowd = [anna, bert, seen("me", "10.0.0.3"), seen("stranger", "10.0.0.4", OTHER)]
    assert set(neighbours().due(crowd, (), OURS)) == {anna, bert}
    assert neighbours().due(crowd, [anna.peer_id], OURS) == [bert]
    assert len(neighbours().due(crowd, ())) == 3


def test_mallory_with_a_thousand_names_takes_no_turn_from_another_host():
    flood = [seen(f"mallory {number}", "10.0.0.66") for number in range(1000)]
    honest = [seen(name, f"10.0.0.{name}") for name in range(1, 5)]
    dialed = neighbours().due([*flood, *honest], (), OURS)
    assert set(honest) < set(dialed)
    assert len(dialed) == len(honest) + lan.EACH
    crowd = [seen(number, f"10.0.{number // 250}.{number % 250}") for number in range(1000)]
    assert len(neighbours().due(crowd, (), OURS)) == lan.AT_A_TIME


def test_who_does_not_answer_is_left_alone_for_a_while_and_longer_each_time(clock) -> None:
    here, gone = neighbours(clock), seen("gone")
    for pause in (lan.FIRST_REDIAL_PAUSE, 2 * lan.FIRST_REDIAL_PAUSE):
        assert here.due([gone], (), OURS) == [gone]
        here.failed(gone)
        asyncio.run(clock.advance(pause - 1))
        wrong, right = seen("anna", port=4002), seen("anna", port=4001)
        here.failed(wrong)
        assert here.due([gone, wrong, right], (), OURS) == [right], "a wrong port costs no turn"
        asyncio.run(clock.advance(2))


def test_no_more_are_dialled_than_are_needed_and_others_once_these_are_gone():
    here = neighbours()
    many = [seen(number, f"10.0.0.{number}") for number in range(2 * lan.ENOUGH)]
    for each in many[: lan.ENOUGH]:
        here.reached(each)
    connected = [each.peer_id for each in many[: lan.ENOUGH]]
    assert here.due(many, connected, OURS) == []
    assert len(here.due(many, connected[1:], OURS)) == 1


PEER = peer_id("anna")
SWARM = bytes(range(32))
HERE = ip_interface("192.168.7.2/24"), ip_interface("fd00:7::2/64")
TEXT = text_of(PEER, SWARM)


def test_a_node_nearby_is_seen_once_for_each_address_that_this_machine_shares_a_network_with():
    hosts = ["192.168.7.9", "10.0.0.9", "fd00:7::9", "fd00:8::9"]
    later = {**TEXT, b"later": b"\xff", b"flag": None}
    first, second = found = sightings_of(TEXT, 31337, hosts, HERE)
    assert first.address == f"/ip4/192.168.7.9/tcp/31337/p2p/{PEER}"
    assert second.address == f"/ip6/fd00:7::9/tcp/31337/p2p/{PEER}"
    assert first.swarm == second.swarm == SWARM.hex()
    assert sightings_of(later, 31337, hosts, HERE) == found, "keys of a later release are left out"
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
def test_what_mallory_announces_is_refused_by_name(reason, wrong):
    text = {**TEXT, **wrong} if reason in ("version", "swarm", "peer") else TEXT
    port = wrong if reason == "port" else 31337
    hosts = wrong if reason == "host" else ["192.168.7.9"]
    with pytest.raises(BadSighting) as refused:
        sightings_of(text, port, hosts, HERE)
    assert str(refused.value) == reason


def test_a_node_that_listens_at_loopback_alone_is_on_no_other_network():
    (alone,) = networks(["/ip4/127.0.0.1/tcp/31337"])
    assert str(alone.ip) == "127.0.0.1"
    everywhere = networks(["/ip4/0.0.0.0/tcp/31337", "/ip6/::/tcp/31337"])
    assert len({each.ip.is_loopback for each in everywhere}) <= 1
    assert networks(["/ip4/203.0.113.77/tcp/31337"]) == ()
