"""What multicast DNS tells is read strictly, and nobody is dialled who is not on this network."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest

from protocol.identity import Identity
from swarm.lan.multicast import MAX_HOSTS, BadSighting, networks, sightings_of, text_of

PEER = Identity.from_seed(b"anna".ljust(32, b".")).peer_id
SWARM = bytes(range(32))
HERE = ip_interface("192.168.7.2/24"), ip_interface("fd00:7::2/64")
TEXT = text_of(PEER, SWARM)


def test_a_node_nearby_is_seen_once_for_each_address_that_this_machine_shares_a_network_with():
    hosts = ["192.168.7.9", "10.0.0.9", "fd00:7::9", "fd00:8::9"]
    first, second = sightings_of(TEXT, 31337, hosts, HERE)
    assert first.address == f"/ip4/192.168.7.9/tcp/31337/p2p/{PEER}"
    assert second.address == f"/ip6/fd00:7::9/tcp/31337/p2p/{PEER}"
    assert first.swarm == second.swarm == SWARM.hex()


def test_keys_of_a_later_release_are_left_out():
    assert sightings_of({**TEXT, b"later": b"\xff", b"flag": None}, 31337, ["192.168.7.9"], HERE)


@pytest.mark.parametrize(
    ("changed", "port", "hosts", "reason"),
    [
        ({b"v": b"2"}, 31337, ["192.168.7.9"], "version"),
        ({b"v": None}, 31337, ["192.168.7.9"], "version"),
        ({b"swarm": b"00" * 31}, 31337, ["192.168.7.9"], "swarm"),
        ({b"swarm": SWARM.hex().upper().encode()}, 31337, ["192.168.7.9"], "swarm"),
        ({b"swarm": SWARM.hex().encode() + b"\n"}, 31337, ["192.168.7.9"], "swarm"),
        ({b"swarm": None}, 31337, ["192.168.7.9"], "swarm"),
        ({b"peer": b"12D3KooW"}, 31337, ["192.168.7.9"], "peer"),
        ({b"peer": b"\xff" * 52}, 31337, ["192.168.7.9"], "peer"),
        ({b"peer": PEER.encode() + b"/p2p-circuit"}, 31337, ["192.168.7.9"], "peer"),
        ({b"peer": None}, 31337, ["192.168.7.9"], "peer"),
        ({}, None, ["192.168.7.9"], "port"),
        ({}, 0, ["192.168.7.9"], "port"),
        ({}, 22, ["192.168.7.9"], "port"),
        ({}, 65536, ["192.168.7.9"], "port"),
        ({}, 31337, [], "host"),
        ({}, 31337, ["192.168.8.9"], "host"),
        ({}, 31337, ["8.8.8.8", "127.0.0.1", "fe80::1", "seed.local"], "host"),
    ],
)
def test_what_mallory_announces_is_refused_by_name(changed, port, hosts, reason):
    with pytest.raises(BadSighting) as refused:
        sightings_of({**TEXT, **changed}, port, hosts, HERE)
    assert refused.value.reason == reason


def test_a_name_with_a_thousand_addresses_is_a_few_sightings():
    hosts = [f"192.168.7.{number}" for number in range(1, 255)]
    assert len(sightings_of(TEXT, 31337, hosts, HERE)) == MAX_HOSTS


def test_a_node_that_listens_at_loopback_alone_is_on_no_other_network():
    (alone,) = networks(["/ip4/127.0.0.1/tcp/31337"])
    assert str(alone.ip) == "127.0.0.1"
    everywhere = networks(["/ip4/0.0.0.0/tcp/31337", "/ip6/::/tcp/31337"])
    assert all(each.ip.is_loopback for each in everywhere) or not any(
        each.ip.is_loopback for each in everywhere
    )
    assert networks(["/ip4/203.0.113.77/tcp/31337"]) == ()
