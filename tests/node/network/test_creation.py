import asyncio
import re
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from experiments.memory_transport import MemoryNetwork, MemoryTransport
from node.config.config import Config
from node.errors import ConfigError, NodeError
from node.network import pinned_manifest as module
from node.network.creation import bounds_for, caution, create_swarm, frame_weight
from node.network.pinned_manifest import NAMED, find_nearby, pinned_manifest
from node.storage.run_folder import RunFolder
from protocol.codec import MAX_FRAME_BYTES
from protocol.errors import BadSchema, TooLarge, TooManyItems
from protocol.frame import check_batch, open_frame, pack, seal
from protocol.manifest import open_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM
from protocol.rollout import EncodedGroup
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.lan import Discovery, MulticastUnavailable
from swarm.sightings import Sighting
from swarm.transport.transport import HandlerLimits
from tests.long_answers import batch, long_group
from tests.swarm.network_parts import EPOCH_SECONDS, ORIGIN, MemorySwarm, identity, manifest

ANNA = identity("anna")
HERE, THERE = (create_swarm(ANNA, name=name) for name in ("here", "there"))
BOUNDED = ("max_frame_bytes", "max_text_bytes", "max_completions")
SWARM = bytes(32)


def address(name):
    """Return a possible address of the named peer."""
    return f"/ip4/10.0.0.5/tcp/31337/p2p/{identity(name).peer_id}"


async def serve(network, peer_id, signed):
    """Start a peer that serves this manifest."""
    peer = MemoryTransport(network, peer_id)
    await peer.start()
    peer.handle(MANIFEST_STREAM, AsyncMock(return_value=signed), HandlerLimits(64, 8, 8))


class Setup:
    """A node whose folder is pinned to HERE, and one peer per swarm."""

    def __init__(self, folder, *swarms, pinned=True):
        self.folder = RunFolder(folder)
        if pinned:
            self.folder.manifest.write_bytes(HERE)
        self._network = MemoryNetwork(SystemClock(), 0)
        self._swarms = swarms

    def join(self, silent=False, wanted=""):
        """Return the node's notes, with the addresses of all peers configured."""
        return asyncio.run(self._join(silent, wanted))

    async def _join(self, silent, wanted):
        names = ["nobody"] * silent + [f"peer {n}" for n in range(len(self._swarms))]
        for name, signed in zip(names[silent:], self._swarms, strict=True):
            await serve(self._network, identity(name).peer_id, signed)
        node = MemoryTransport(self._network, "node")
        await node.start()
        peers = [address(name) for name in names]
        config = Config.with_overrides({"network.peers": peers, "network.swarm": wanted})
        signed, notes = await pinned_manifest(config, self.folder, ANNA, node)
        assert signed == HERE
        return notes


def test_join_reports_a_peer_of_another_swarm(tmp_path):
    told = " ".join(Setup(tmp_path, THERE).join())
    here, there = (swarm_id(each).hex()[:16] for each in (HERE, THERE))
    assert here in told and there in told
    for way in (f"--swarm {there}", "--config NEW"):
        assert f"swarm-node join {way} --peers {address('peer 0')}" in told
    notes = Setup(tmp_path, THERE, HERE).join()
    assert [note for note in notes if there not in note] == [], "one peer of HERE is enough"


@pytest.mark.parametrize("pinned", [True, False])
def test_node_reports_a_peer_with_its_own_identity(tmp_path, pinned):
    async def joined(*peers, listening=()):
        node = MemoryTransport(MemoryNetwork(SystemClock(), 0), identity("me").peer_id)
        await node.start()
        node.addresses = lambda: listening
        config = Config.with_overrides({"network.peers": peers})
        return (await pinned_manifest(config, folder, ANNA, node))[1]

    folder = RunFolder(tmp_path)
    remedy = "has the identity of this node.*swarm-node init NEW"
    if not pinned:
        with pytest.raises(NodeError, match=remedy):
            asyncio.run(joined(address("me")))
        return
    folder.manifest.write_bytes(HERE)
    (note,) = asyncio.run(joined(address("me"), address("nobody")))
    assert re.search(remedy, note) and address("me") in note
    assert asyncio.run(joined(address("me"), listening=(address("me"),))) == ()


def test_node_with_own_task_files_creates_no_usual_swarm(tmp_path):
    node, folder = MemoryTransport(MemoryNetwork(SystemClock(), 0), "node"), RunFolder(tmp_path)
    config = Config.with_overrides({"tasks.files.sums": "sums.jsonl"})
    with pytest.raises(ConfigError, match=r"tasks\.files: 'sums'\. .*swarm-node create"):
        asyncio.run(pinned_manifest(config, folder, ANNA, node))
    assert not folder.manifest.exists()


def test_node_starts_alone_if_peers_do_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    assert Setup(tmp_path).join(silent=True) == ()
    assert "belongs to swarm" in Setup(tmp_path, THERE).join(silent=True)[-1]


@pytest.mark.parametrize("told", [b"", b"nonsense", HERE[:40], THERE[:-1]])
def test_node_starts_despite_a_peer_with_a_bad_manifest(tmp_path, told):
    assert all("belongs to swarm" not in note for note in Setup(tmp_path, told, HERE).join())
    Setup(tmp_path, told).join()


@pytest.mark.parametrize("digits", [8, 63, 64])
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "fetched"])
def test_id_prefix_selects_the_swarm(tmp_path, pinned, digits):
    setup = Setup(tmp_path, HERE, pinned=pinned)
    setup.join(wanted=swarm_id(HERE).hex()[:digits])
    assert setup.folder.manifest.read_bytes() == HERE


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "fetched"])
def test_wrong_id_prefix_is_rejected_with_the_actual_id(tmp_path, pinned):
    setup = Setup(tmp_path, HERE, pinned=pinned)
    here, there = (swarm_id(each).hex() for each in (HERE, THERE))
    with pytest.raises(ConfigError, match=rf"network\.swarm.*belongs to swarm {here}"):
        setup.join(wanted=there[:8])
    assert setup.folder.manifest.exists() == pinned


def test_ambiguous_id_prefix_error_names_both_swarms(tmp_path, monkeypatch):
    ids = {HERE: bytes(4) + b"h" * 28, THERE: bytes(4) + b"t" * 28}
    monkeypatch.setattr(module, "swarm_id", ids.get)
    setup = Setup(tmp_path, HERE, THERE, pinned=False)
    with pytest.raises(ConfigError, match="write more digits") as refused:
        setup.join(wanted="0" * 8)
    assert all(each.hex() in str(refused.value) for each in ids.values())
    assert not setup.folder.manifest.exists()
    setup.join(wanted=ids[HERE].hex()[:10])
    assert setup.folder.manifest.read_bytes() == HERE


def seen(number, swarm):
    return Sighting(identity(f"peer {number}").peer_id, swarm, f"10.0.0.{number}", 31337)


class FakeLan(Discovery):
    """A local network that reports each sighting once."""

    def __init__(self, transport, sightings):
        super().__init__(transport, (), SystemClock(), Counters())
        self._sightings = sightings

    async def look(self, swarm=""):
        now, self._sightings = self._sightings, []
        return [each for each in now if each.swarm.startswith(swarm)]


def among(use, manifests, lies=""):
    """Return the result of ``use`` on a network with one member per manifest.

    Args:
        lies: swarm id that all members announce instead of their own.
    """

    async def run():
        network = MemoryNetwork(SystemClock(), 0)
        for number, signed in enumerate(manifests, 1):
            await serve(network, identity(f"peer {number}").peer_id, signed)
        sightings = [seen(n, lies or swarm_id(s).hex()) for n, s in enumerate(manifests, 1)]
        node = MemoryTransport(network, "node")
        await node.start()
        return await use(FakeLan(node, sightings), node)

    return asyncio.run(run())


def search(*manifests, wanted="", **members):
    """Return what :func:`find_nearby` finds; for arguments see :func:`among`."""
    return among(lambda lan, node: find_nearby(lan, node, wanted, 2.0), manifests, **members)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(module, "LOCAL_LOOK_SECONDS", 0.05)


def test_node_joins_the_requested_swarm_or_lists_several():
    here, there = (swarm_id(each).hex() for each in (HERE, THERE))
    with pytest.raises(ConfigError, match="name one with --swarm ID") as refused:
        search(HERE, THERE)
    assert here in str(refused.value) and there in str(refused.value)
    for digits in (8, 64):
        assert search(HERE, THERE, wanted=there[:digits])[0] == THERE
    swarms = [create_swarm(ANNA, name=f"mallory {n}") for n in range(3 * NAMED)]
    with pytest.raises(ConfigError, match=f"and {2 * NAMED} more") as refused:
        search(*swarms)
    assert sum(swarm_id(each).hex() in str(refused.value) for each in swarms) == NAMED


def test_node_rejects_a_peer_that_announces_a_false_swarm():
    with pytest.raises(NodeError, match="no member of any swarm was found on the local network"):
        search(HERE, lies=swarm_id(THERE).hex())
    with pytest.raises(NodeError, match="no member of a swarm"):
        search(HERE, wanted=swarm_id(THERE).hex(), lies=swarm_id(THERE).hex())


@pytest.mark.parametrize("told", [b"", b"nonsense", HERE[:-1]])
def test_node_skips_a_peer_with_a_bad_manifest_on_lan(told):
    assert search(told, HERE, lies=swarm_id(HERE).hex())[0] == HERE


def test_empty_or_failed_lan_search_shows_the_fix(monkeypatch):
    with pytest.raises(NodeError, match="swarm-node create --name NAME, then the same command"):
        search()
    error = MulticastUnavailable("no multicast DNS at 10.0.0.1: no route; set network.lan = false")
    monkeypatch.setattr(FakeLan, "look", AsyncMock(side_effect=error))
    with pytest.raises(NodeError, match=r"no multicast DNS at 10\.0\.0\.1.*--peers"):
        search()


def test_node_joins_reports_and_keeps_the_only_swarm_on_lan(tmp_path):
    config, folder = Config.with_overrides({"network.lan": True}), RunFolder(tmp_path)

    def pin(lan, node):
        return pinned_manifest(config, folder, ANNA, node, lan)

    signed, (note,) = among(pin, [HERE, HERE])
    assert signed == HERE == folder.manifest.read_bytes()
    found, _, at = note.rpartition(" ")
    assert found == "found this swarm on the local network, at"
    assert at in [seen(n, "").address for n in (1, 2)]
    assert among(pin, [THERE]) == (HERE, ())


def created(tokens, answers):
    bounds = bounds_for(tokens, answers)
    return manifest(**{name: getattr(bounds, name) for name in BOUNDED})


@pytest.mark.parametrize(("tokens", "answers"), [(2_048, 8), (8_192, 8), (4_096, 16)])
def test_proposed_frame_size_fits_a_group_of_long_answers(tokens, answers):
    agreed, group = created(tokens, answers), long_group(tokens, answers)
    assert not pack([EncodedGroup.of(group)], agreed.max_frame_bytes).oversize
    frame = seal(batch(group), ANNA, SWARM)
    assert len(frame) <= frame_weight(tokens, answers) <= agreed.max_frame_bytes
    opened = open_frame(frame, SWARM, agreed).batch.groups[0]
    for sent, got in zip(group.completions, opened.completions, strict=True):
        assert sent.segments[0].text == got.segments[0].text
        assert sent.segments[0].tokens.ids == got.segments[0].tokens.ids


def test_only_large_groups_need_more_than_default_limits():
    group, many = long_group(8_192, 8), batch(long_group(8, 72))
    with pytest.raises(TooLarge):
        open_frame(seal(batch(group), ANNA, SWARM), SWARM, manifest())
    assert pack([EncodedGroup.of(group)], manifest().max_frame_bytes).oversize
    with pytest.raises(TooManyItems, match="72 completions, limit 64"):
        check_batch(many, manifest())
    check_batch(many, created(8, 72))
    short = open_manifest(create_swarm(ANNA, name="s", answers=bounds_for(64, 8)))
    usual = open_manifest(create_swarm(ANNA, name="s", answers=None))
    for name in BOUNDED:
        assert getattr(short, name) == getattr(usual, name)


def test_bounds_for_rejects_oversized_groups_with_limits():
    with pytest.raises(BadSchema, match="answer_tokens: 64 completions of 8192 tokens") as refused:
        bounds_for(8_192, 64)
    said = str(refused.value)
    most, fewer = (int(said.split(before)[1].split()[0]) for before in ("at most ", "groups of "))
    assert bounds_for(most, 64).max_frame_bytes <= MAX_FRAME_BYTES
    assert bounds_for(8_192, fewer).max_frame_bytes <= MAX_FRAME_BYTES
    for tokens, answers in ((most + 1, 64), (8_192, fewer + 1), (0, 8), (64, 1), (64, 1_025)):
        with pytest.raises(BadSchema):
            bounds_for(tokens, answers)


def test_caution_names_config_keys_of_oversized_groups():
    usual = manifest()
    assert caution(usual, 64, 8) == ""
    said = caution(usual, 4_096, 8)
    for word in ("engine.max_new_tokens = 4096", "engine.group_size = 8", "max_frame_bytes"):
        assert word in said
    assert "swarm-node create --answer-tokens 4096 --group-size 8" in said
    assert caution(created(4_096, 8), 4_096, 8) == ""
    assert "max_completions" in caution(usual, 64, 65)
    assert "max_frame_bytes" in caution(usual, 1 << 17, 2)
    assert "max_text_bytes" in caution(usual, 5_000, 2)
    assert caution(usual, 8_192, 64).endswith(": decrease them"), "no swarm accepts such groups"


@pytest.mark.parametrize(("agreed", "whole"), [(created(8_192, 8), True), (manifest(), False)])
async def test_long_answers_reach_peers_and_lost_tokens_are_counted(agreed, whole):
    swarm = MemorySwarm(**{name: getattr(agreed, name) for name in BOUNDED})
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    epoch = int(swarm.clock.time() // EPOCH_SECONDS)
    anna.outbox.put([replace(long_group(8_192, 8), epoch=epoch)], ORIGIN)
    await swarm.turns(4, EPOCH_SECONDS / 4)
    assert anna.count("groups_without_tokens") == int(not whole)
    (pooled,) = ben.pool.consume(ben.pool.fresh(), 1)
    told = [each.segments[0].tokens for each in pooled.group.completions]
    assert [len(each.ids) if each else 0 for each in told] == [8_192 * whole] * 8
