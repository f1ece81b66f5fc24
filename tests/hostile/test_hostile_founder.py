"""Mallory founds a swarm, or passes hers off as another: who joins is told so, and unharmed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.concurrency.threads import LoopThread
from node.config.config import Config
from node.errors import NodeError
from node.network.pinned_manifest import pinned_manifest
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.transport.hivemind.transport import HivemindTransport
from tests.end_to_end.commands import Command
from tests.hostile.founders import ESCAPES, LIES, honest
from tests.hostile.peer import LISTEN, START_SECONDS, Peer
from tests.hostile.terms import Terms

pytestmark = pytest.mark.processes

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PATIENCE = 300.0


@dataclass
class Founder:
    """Mallory's seed, which hands out whatever it is told to, and a machine that joins it."""

    loop: LoopThread
    peer: Peer
    joiner: HivemindTransport
    identity: Identity
    manifest: bytes = b""

    @property
    def address(self) -> str:
        return self.peer.transport.addresses()[0]

    def join(self, folder: RunFolder, **keys: object) -> bytes:
        """The manifest that a node of this run folder ends up with.

        Raises:
            NodeError: none.
        """
        config = Config.with_overrides(
            {
                "network.peers": [self.address],
                "network.start_timeout": PATIENCE,
                **{key.replace("__", "."): value for key, value in keys.items()},
            }
        )
        return self.loop.call(pinned_manifest(config, folder, self.identity, self.joiner))[0]


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Founder]:
    folder = tmp_path_factory.mktemp("founder")
    with ExitStack() as stack:
        loop = LoopThread("founder")
        stack.callback(loop.close)
        identity = Identity.create(folder / "joiner.key")
        joiner = HivemindTransport(
            folder / "joiner.key", listen=LISTEN, start_timeout=START_SECONDS
        )
        peer = Peer("mallory", folder, Terms.of(honest(identity)), [])
        founder = Founder(loop, peer, joiner, identity)

        async def answer(asker: str, request: bytes) -> bytes:
            return founder.manifest

        for transport in (peer.transport, joiner):
            stack.callback(lambda t=transport: loop.call(t.close()))
        loop.call(joiner.start())
        loop.call(peer.start((), answers={MANIFEST_STREAM: answer}, raw={}))
        yield founder


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_in_any_field_is_refused_in_one_line_and_not_kept(
    mallory: Founder, tmp_path: Path, lie: str
) -> None:
    folder = RunFolder(tmp_path)
    mallory.manifest = LIES[lie](mallory.peer.identity)
    with pytest.raises(NodeError) as refused:
        mallory.join(folder)
    assert f"the manifest from {mallory.address} is not valid" in str(refused.value)
    assert CONTROL.findall(str(refused.value)) == []
    assert not folder.manifest.exists()


@pytest.mark.parametrize(
    ("version", "remedy"), [(b"1", "founded with this one"), (b"3", "Update swarm-node")]
)
def test_a_peer_of_another_version_is_named_as_such_and_what_helps(
    mallory: Founder, tmp_path: Path, version: bytes, remedy: str
) -> None:
    folder = RunFolder(tmp_path)
    signed = honest(mallory.peer.identity)
    mallory.manifest = signed[:7] + version + signed[8:]
    with pytest.raises(NodeError) as refused:
        mallory.join(folder)
    told = str(refused.value)
    assert f"it is of version {version.decode()} of the protocol" in told
    assert remedy in told and mallory.address in told
    assert not folder.manifest.exists()


def test_who_names_the_swarm_is_given_no_other(mallory: Founder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    wanted = honest(Identity.generate())
    mallory.manifest = honest(mallory.peer.identity)
    with pytest.raises(NodeError, match=r"network\.swarm.*belongs to swarm"):
        mallory.join(folder, network__swarm=swarm_id(wanted).hex())
    assert not folder.manifest.exists()


def test_a_manifest_passes_through_anybodys_hands_unharmed(
    mallory: Founder, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    wanted = mallory.manifest = honest(Identity.generate())
    assert mallory.join(folder, network__swarm=swarm_id(wanted).hex()) == wanted
    assert folder.manifest.read_bytes() == wanted


def test_what_was_pinned_once_stays_whatever_mallory_hands_out(
    mallory: Founder, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    first = mallory.manifest = honest(Identity.generate())
    assert mallory.join(folder) == first
    mallory.manifest = honest(mallory.peer.identity)
    assert mallory.join(folder) == first
    assert folder.manifest.read_bytes() == first


@pytest.mark.parametrize("lie", ["name", "family's levels", "family's source"])
def test_the_founders_words_do_not_reach_the_terminal_as_they_are(
    mallory: Founder, tmp_path: Path, lie: str
) -> None:
    mallory.manifest = LIES[lie](mallory.peer.identity)
    listen = '--set=network.listen=["/ip4/127.0.0.1/tcp/0"]'
    command = Command(
        tmp_path,
        "seed",
        f"--peers={mallory.address}",
        listen,
        f"--set=network.start_timeout={START_SECONDS}",
    )
    try:
        assert command.wait() == 1
        (line,) = command.err
        shown = "".join([*command.out, *command.err, *command.run.log.read_text().splitlines()])
    finally:
        command.close()
    assert line.startswith("error: the manifest from ")
    assert CONTROL.findall(shown) == []
    assert ESCAPES[0] not in shown
    assert not command.run.manifest.exists()
