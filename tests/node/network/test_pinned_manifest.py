"""Which swarm a node ends up in when its folder and the peers it is told of do not agree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from node.config.config import Config
from node.errors import ConfigError
from node.network import pinned_manifest as module
from node.network.founding import found_swarm
from node.network.pinned_manifest import pinned_manifest
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.common.clock import SystemClock
from swarm.transport.memory import MemoryNetwork, MemoryTransport
from swarm.transport.transport import HandlerLimits

ANNA = Identity.from_seed(b"anna".ljust(32, b"."))
HERE, THERE = (found_swarm(ANNA, name=name) for name in ("here", "there"))


def address(name: str) -> str:
    """Where a peer of this name could be."""
    return f"/ip4/10.0.0.5/tcp/31337/p2p/{peer_id(name)}"


def peer_id(name: str) -> str:
    return Identity.from_seed(name.encode().ljust(32, b".")).peer_id


class Street:
    """A node whose folder is pinned to a swarm, and a peer of each of some swarms."""

    def __init__(self, folder: Path, *swarms: bytes, pinned: bool = True) -> None:
        self.folder = RunFolder(folder)
        if pinned:
            self.folder.manifest.write_bytes(HERE)
        self._network = MemoryNetwork(SystemClock(), 0)
        self._swarms = swarms

    def join(self, silent: bool = False, wanted: str = "") -> Sequence[str]:
        """What the node is told, with the address of every peer in its configuration."""
        return asyncio.run(self._join(silent, wanted))

    async def _join(self, silent: bool, wanted: str) -> Sequence[str]:
        addresses = [address("nobody")] * silent
        for number, signed in enumerate(self._swarms):
            peer = MemoryTransport(self._network, peer_id(f"peer {number}"))
            await peer.start()

            async def answer(asker: str, request: bytes, told: bytes = signed) -> bytes:
                return told

            peer.handle(MANIFEST_STREAM, answer, HandlerLimits(64, 8, 8))
            addresses.append(address(f"peer {number}"))
        node = MemoryTransport(self._network, "node")
        await node.start()
        config = Config.with_overrides({"network.peers": addresses, "network.swarm": wanted})
        signed, notes = await pinned_manifest(config, self.folder, ANNA, node)
        assert signed == HERE
        return notes


def test_a_folder_of_one_swarm_that_is_taken_to_a_peer_of_another_says_so(tmp_path):
    told = " ".join(Street(tmp_path, THERE).join())
    assert swarm_id(HERE).hex()[:16] in told
    assert swarm_id(THERE).hex()[:16] in told
    theirs = swarm_id(THERE).hex()[:16]
    assert f"swarm-node join --swarm {theirs} --peers {address('peer 0')}" in told
    assert f"swarm-node join --config NEW --peers {address('peer 0')}" in told


def test_one_peer_of_its_own_swarm_is_enough_and_strangers_are_named(tmp_path):
    notes = Street(tmp_path, THERE, HERE).join()
    assert [note for note in notes if swarm_id(THERE).hex()[:16] not in note] == []


def test_peers_that_do_not_answer_keep_nobody_from_going_on_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    assert Street(tmp_path).join(silent=True) == ()
    assert "belongs to swarm" in Street(tmp_path, THERE).join(silent=True)[-1]


@pytest.mark.parametrize("told", [b"", b"nonsense", HERE[:40], THERE[:-1]])
def test_a_peer_that_hands_out_no_manifest_keeps_nobody_from_starting(tmp_path, told):
    assert all("belongs to swarm" not in note for note in Street(tmp_path, told, HERE).join())
    Street(tmp_path, told).join()


@pytest.mark.parametrize("digits", [8, 63, 64])
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "fetched"])
def test_a_swarm_is_known_by_the_beginning_of_its_id(tmp_path, pinned, digits):
    street = Street(tmp_path, HERE, pinned=pinned)
    street.join(wanted=swarm_id(HERE).hex()[:digits])
    assert street.folder.manifest.read_bytes() == HERE


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "fetched"])
def test_the_beginning_of_another_swarms_id_is_refused_and_what_is_here_is_named(tmp_path, pinned):
    street = Street(tmp_path, HERE, pinned=pinned)
    here, there = (swarm_id(each).hex() for each in (HERE, THERE))
    with pytest.raises(ConfigError, match=rf"network\.swarm.*belongs to swarm {here}"):
        street.join(wanted=there[:8])
    assert street.folder.manifest.exists() == pinned


def test_a_beginning_that_two_swarms_share_is_refused_and_both_are_named(tmp_path, monkeypatch):
    ids = {HERE: bytes(4) + b"h" * 28, THERE: bytes(4) + b"t" * 28}
    monkeypatch.setattr(module, "swarm_id", ids.get)
    street = Street(tmp_path, HERE, THERE, pinned=False)
    with pytest.raises(ConfigError, match="write more digits") as refused:
        street.join(wanted="0" * 8)
    assert all(each.hex() in str(refused.value) for each in ids.values())
    assert not street.folder.manifest.exists()
    street.join(wanted=ids[HERE].hex()[:10])
    assert street.folder.manifest.read_bytes() == HERE
