"""Members on one network find each other by multicast DNS over either transport.
Mallory on the same network neither misleads a node nor keeps it out."""

import subprocess
import sys
from contextlib import ExitStack

import pytest

from protocol.manifest import swarm_id
from tests.end_to_end.watching import wait_until
from tests.routers.looking import admitted, peer
from tests.routers.member import ROOT, Member, created

pytestmark = pytest.mark.processes

ALONE: dict[str, object] = {"network__lan": True, "network__peers": []}


def is_in_the_swarm_of(node: Member, other: Member) -> bool:
    connected = peer(node, other).get("connected")
    return bool(connected and node.status()["swarm_id"] == other.status()["swarm_id"])


@pytest.mark.parametrize("transport", ["hivemind", "libp2p"])
def test_node_without_peers_joins_the_swarm_on_its_lan(village, transport) -> None:
    seed = village.seed(**ALONE)
    nodes = [village.node(f"node{n}", network__transport=transport, **ALONE) for n in range(2)]
    for node in nodes:
        wait_until(lambda n=node: is_in_the_swarm_of(n, seed), node, "the seed's swarm")
    for node, other in (nodes, nodes[::-1]):
        wait_until(lambda n=node, o=other: admitted(n, o) >= 1, node, "groups of the other")


def test_node_joins_the_named_one_of_two_lan_swarms(village, tmp_path) -> None:
    here = village.seed("here", **ALONE)
    created(tmp_path / "there")
    there = village.seed("there", **ALONE)
    ids = {seed: swarm_id(manifest_of(seed)) for seed in (here, there)}
    for seed, other in ((here, there), (there, here)):
        visible = lambda s=seed, o=other: ids[o].hex()[:16] in s.tell("doctor")  # noqa: E731
        wait_until(visible, seed, "the other swarm")
    lost = village.node("lost", **ALONE)
    wait_until(lambda: lost.exit_code is not None, here, "an answer")
    assert lost.exit_code == 2 and lost.said("Several swarms are on the local network")
    assert all(lost.said(each.hex()) for each in ids.values())
    joiner = village.seed("found", network__swarm=ids[there].hex()[:12], **ALONE)
    wait_until(lambda: is_in_the_swarm_of(joiner, there), joiner, "the swarm asked for")


def manifest_of(node: Member) -> bytes:
    return (node.folder / "manifest.swarm").read_bytes()


def test_node_moves_to_a_named_swarm_on_its_lan(village, tmp_path):
    seed = village.seed(**ALONE)
    wanted = swarm_id(manifest_of(seed)).hex()
    created(tmp_path / "mover")
    mover = Member(village.laboratory.host(), tmp_path / "mover", "join")
    told = mover.tell("join", "--lan", "--swarm", wanted[:16], "--rounds", "1")
    mover.close()
    assert f"to 'routers' {wanted[:16]} with policy and optimizer" in told
    assert manifest_of(mover) == manifest_of(seed)


def test_node_joins_despite_1000_false_lan_announcements(village) -> None:
    seed = village.seed(**ALONE)
    swarm = swarm_id(manifest_of(seed)).hex()
    place = village.laboratory.host()
    with ExitStack() as stack:
        for number, told in (("1000", ""), ("1", seed.peer_id)):
            words = place.ipv4, place.ipv4, number, swarm, "4001", told
            module = [sys.executable, "-m", "tests.swarm.lan.announcing", *words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            mallory = subprocess.Popen([*place.prefix, *module], cwd=ROOT, **pipes)
            stack.callback(lambda each=mallory: (each.kill(), each.wait()))
            assert mallory.stdout and mallory.stdout.readline() == b"announced\n"
        joined = village.seed("joined", **ALONE)
        wait_until(lambda: is_in_the_swarm_of(joined, seed), joined, "the seed's swarm")
