"""Mallory creates or imitates a swarm: joining nodes report it and stay unharmed."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from node.config.config import Config
from node.errors import NodeError
from node.network.pinned_manifest import pinned_manifest
from node.storage.run_folder import RunFolder
from node.tasks.task_set import load_task_set
from node.threads import LoopThread
from protocol import envelope
from protocol.codec import MAX_MANIFEST_BYTES
from protocol.identity import Identity
from protocol.manifest import Manifest, sign_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.transport.hivemind.transport import HivemindTransport
from tests.end_to_end.commands import Command
from tests.hostile.peer import LISTEN, START_SECONDS, Peer, Terms

pytestmark = pytest.mark.processes

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\r\nall is well"
WEAK = bytes((1,)) + bytes(31)
Lie = Callable[[Identity], bytes]


def honest(creator: Identity) -> bytes:
    kwargs = {"name": "mallory", "founder": creator.author, "created": time.time()}
    return sign_manifest(Manifest(**kwargs, catalogue=load_task_set("tiny")), creator)


def signed(creator: Identity, body: bytes) -> bytes:
    return envelope.close(envelope.MANIFEST, envelope.NO_SWARM, creator, body)


def changed(change: Callable[[dict[str, Any]], object]) -> Lie:
    def lie(creator: Identity) -> bytes:
        wire = msgpack.unpackb(honest(creator)[envelope.HEAD_BYTES :])
        change(wire)
        return signed(creator, msgpack.packb(wire, use_bin_type=True))

    return lie


def field(name: str, value: Any) -> Lie:
    return changed(lambda wire: wire.update({name: value}))


def env(name: str, value: Any) -> Lie:
    """Set one field of the first task family."""
    return changed(lambda wire: wire["catalogue"][0].update({name: value}))


def edit(change: Callable[[bytes], bytes]) -> Lie:
    return lambda creator: change(honest(creator))


LIES: dict[str, Lie] = {
    "nothing": lambda creator: b"",
    "garbage": lambda creator: b"\xff" * 4000,
    "interrupted": edit(lambda made: made[:200]),
    "tampered": edit(lambda made: made[:-1] + bytes([made[-1] ^ 1])),
    "another creator's name": edit(lambda made: made[:40] + Identity.generate().author + made[72:]),
    "a weak key": edit(lambda made: made[:40] + 2 * WEAK + bytes(32) + made[envelope.HEAD_BYTES :]),
    "another swarm's": edit(lambda made: made[:8] + b"\x01" * 32 + made[40:]),
    "nested": lambda creator: signed(creator, b"\x91" * 1000),
    "promised items": lambda creator: signed(creator, b"\xdd\xff\xff\xff\xff"),
    "a long body": lambda creator: signed(creator, bytes(MAX_MANIFEST_BYTES - 200)),
    "no epoch": changed(lambda wire: wire.pop("epoch_seconds")),
    "one more field": field("run", "id"),
    "name": field("name", ESCAPES),
    "created": field("created", float("nan")),
    "catalogue": field("catalogue", []),
    "catalogue of thousands": field("catalogue", [{}] * 5000),
    "epoch_seconds": field("epoch_seconds", 1e-9),
    "endless epoch_seconds": field("epoch_seconds", 1e300),
    "shards, as in version 1": field("shards", 3),
    "max_frame_bytes": field("max_frame_bytes", 1 << 40),
    "max_groups_per_epoch": field("max_groups_per_epoch", 1 << 40),
    "max_completions": field("max_completions", 0),
    "max_text_bytes": field("max_text_bytes", -1),
    "max_age_epochs": field("max_age_epochs", True),
    "admission": field("admission", ["pay", ESCAPES]),
    "endless work": field("admission", ["proof-of-work", 200]),
    "weak allow list": field("admission", ["allow-list", [WEAK]]),
    "family's name": env("name", ESCAPES),
    "family's path": env("name", "../../etc/passwd"),
    "family's source": env("source", f"exec {ESCAPES}"),
    "family's version": env("version", ESCAPES),
    "family's levels": env("levels", [ESCAPES]),
    "family's code": env("levels", ["{{}}.__class__"]),
    "family's nested level": env("levels", ["[" * 4000]),
    "family's template": env("template", "{question}{question.__class__}{question}"),
    "family's long template": env("template", "{question}" + "x" * 9000),
    "family's extract": env("extract", ESCAPES),
}

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TIMEOUT = 300.0


@dataclass
class Creator:
    """Mallory's bootstrap node, which serves any manifest, and a joining node."""

    loop: LoopThread
    peer: Peer
    joiner: HivemindTransport
    identity: Identity
    manifest: bytes = b""

    @property
    def address(self) -> str:
        return self.peer.transport.addresses()[0]

    def join(self, folder: RunFolder, **keys: object) -> bytes:
        """Return the manifest that a node of this run folder pins."""
        network = {"peers": [self.address], "start_timeout": TIMEOUT, **keys}
        config = Config.with_overrides({f"network.{key}": n for key, n in network.items()})
        return self.loop.call(pinned_manifest(config, folder, self.identity, self.joiner))[0]


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Creator]:
    folder = tmp_path_factory.mktemp("creator")
    with ExitStack() as stack:
        loop = LoopThread("creator")
        stack.callback(loop.close)
        identity = Identity.create(key := folder / "joiner.key")
        joiner = HivemindTransport(key, listen=LISTEN, start_timeout=START_SECONDS)
        peer = Peer("mallory", folder, Terms.of(honest(identity)), [])
        creator = Creator(loop, peer, joiner, identity)

        async def answer(asker: str, request: bytes) -> bytes:
            return creator.manifest

        for transport in (peer.transport, joiner):
            stack.callback(lambda t=transport: loop.call(t.close()))
        loop.call(joiner.start())
        loop.call(peer.start((), {MANIFEST_STREAM: answer}))
        yield creator


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.mark.parametrize("lie", LIES)
def test_join_refuses_invalid_manifest_in_one_line_without_saving(mallory, folder, lie):
    mallory.manifest = LIES[lie](mallory.peer.identity)
    with pytest.raises(NodeError) as refused:
        mallory.join(folder)
    assert f"the manifest from {mallory.address} is not valid" in str(refused.value)
    assert CONTROL.findall(str(refused.value)) == []
    assert not folder.manifest.exists()


@pytest.mark.parametrize(
    ("version", "remedy"), [(b"1", "created with this version"), (b"3", "Update swarm-node")]
)
def test_version_error_names_the_peer_and_the_fix(mallory, folder, version, remedy):
    signed = honest(mallory.peer.identity)
    mallory.manifest = signed[:7] + version + signed[8:]
    with pytest.raises(NodeError) as refused:
        mallory.join(folder)
    message = str(refused.value)
    assert f"it is of version {version.decode()} of the protocol" in message
    assert remedy in message and mallory.address in message
    assert not folder.manifest.exists()


def test_join_refuses_a_different_swarm_id(mallory: Creator, folder: RunFolder) -> None:
    wanted = honest(Identity.generate())
    mallory.manifest = honest(mallory.peer.identity)
    with pytest.raises(NodeError, match=r"network\.swarm.*belongs to swarm"):
        mallory.join(folder, swarm=swarm_id(wanted).hex())
    assert not folder.manifest.exists()


def test_join_accepts_valid_manifest_from_any_peer(mallory, folder):
    wanted = mallory.manifest = honest(Identity.generate())
    assert mallory.join(folder, swarm=swarm_id(wanted).hex()) == wanted
    assert folder.manifest.read_bytes() == wanted


def test_join_keeps_the_pinned_manifest(mallory, folder):
    first = mallory.manifest = honest(Identity.generate())
    assert mallory.join(folder) == first
    mallory.manifest = honest(mallory.peer.identity)
    assert mallory.join(folder) == first
    assert folder.manifest.read_bytes() == first


@pytest.mark.parametrize("lie", ["name", "family's levels", "family's source"])
def test_bootstrap_escapes_text_from_an_invalid_manifest(mallory, folder, lie):
    mallory.manifest = LIES[lie](mallory.peer.identity)
    local, patience = '["/ip4/127.0.0.1/tcp/0"]', f"network.start_timeout={START_SECONDS}"
    options = (f"--peers={mallory.address}", f"--set=network.listen={local}", f"--set={patience}")
    with Command(folder.root, "bootstrap", *options) as command:
        assert command.wait() == 1
        (line,) = command.err
        output = "".join([*command.out, *command.err, *command.run.log.read_text().splitlines()])
    assert line.startswith("error: the manifest from ")
    assert CONTROL.findall(output) == []
    assert ESCAPES[0] not in output
    assert not command.run.manifest.exists()
