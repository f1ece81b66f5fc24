"""Input of ``node`` that a peer may control: worker replies, task set, files."""

import json
import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgpack

from node.errors import NodeError, TaskSetError
from node.monitor.output import printable, printable_lines
from node.storage.checkpoints import DIGESTS, STATE, CheckpointError, Checkpoints
from node.storage.run_folder import RunFolder
from node.tasks.sources.jsonl import JsonLines, file_digest
from node.tasks.task_set import level_settings, load_task_set
from protocol.errors import ProtocolError
from protocol.manifest import EnvSpec
from swarm.common.child_process import Channel, ChannelError
from swarm.transport.peer_connections import PeerCache
from tests.fuzz.target import Target, target

_DEEP = b"[" * 100_000
_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = _FOLDER / name

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return run


@target
def channel() -> Target:
    """Messages of a worker that an answer has corrupted."""

    def run(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        with closing(theirs):
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            end = Channel(ours)
            try:
                while True:
                    end.receive(1.0)
            finally:
                end.close()

    body = msgpack.packb({"prompt": "1 + 1", "rewards": [0.0, 1.0]})
    seeds = (len(body).to_bytes(4, "little") + body, b"\xff" * 8)
    return Target("channel", run, (ChannelError,), seeds)


@target
def levels() -> Target:
    """The settings of a level from a manifest."""

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        level_settings(EnvSpec("gcd", "reasoning-gym", "1", (text,), "{question}", "text"))

    odd = b'{"max_value":24,"min":[1,2.5e3,null,true,"\\u001b"]}'
    seeds = (b"{}", odd, b'{"a":{"b":{}}}', _DEEP[:4000])
    return Target("levels", run, (ProtocolError, TaskSetError), seeds)


@target
def task_set() -> Target:
    seed = b'source="plugin"\nversion="1"\ntemplate="{question}"\nextract="text"\n'
    seed += b'[[env]]\nname="sum"\nlevels=[{a=1},{}]\n'
    run = _file("task_set.toml", lambda path: load_task_set(str(path)))
    seeds = (seed, b"env=[1]", b'env=[{name="x"}]', b"env=" + _DEEP)
    return Target("task_set", run, (TaskSetError,), seeds)


@target
def questions() -> Target:
    def read(path: Path) -> JsonLines:
        spec = EnvSpec("q", "jsonl", file_digest(path), ("{}",), "{question}", "text")
        return JsonLines.open(spec, (), path)

    seeds = (b'{"prompt": "1+1", "answer": "2"}\n', b"[]\n", b"\n", _DEEP, b"\xee")
    return Target("questions", _file("q.jsonl", read), (TaskSetError,), seeds)


@target
def checkpoint() -> Target:
    """The digests and the state of a checkpoint."""
    folder = Checkpoints(_FOLDER / "checkpoints")
    path = folder.save(1, lambda draft: None, {"round": 1})
    known = json.loads((path / DIGESTS).read_bytes())

    def run(data: bytes) -> None:
        name, content = (DIGESTS, data[1:]) if data[:1] < b"\x80" else (STATE, data[1:])
        (path / name).write_bytes(content)
        folder.load_latest()

    seeds = (b"\x00" + json.dumps(known).encode(), b'\xff{"round": 1}', b"\x00" + _DEEP)
    return Target("checkpoint", run, (CheckpointError,), seeds)


@target
def status() -> Target:
    read = _file("status.json", lambda path: RunFolder(path.parent).read_status())
    return Target("status", read, (NodeError,), (b'{"pid": 1, "peers": []}', b"[1]", _DEEP))


@target
def peer_cache() -> Target:
    run = _file("peers", lambda path: PeerCache(path).load())
    return Target("peer_cache", run, (), (b"/ip4/127.0.0.1/tcp/1/p2p/12D3KooW\n",))


@target
def terminal() -> Target:
    def run(data: bytes) -> None:
        for encoding in ("utf-8", "utf-16-le"):
            text = data.decode(encoding, "surrogatepass" if encoding != "utf-8" else "replace")
            assert printable(text).isprintable()
            assert printable_lines(text).replace("\n", "").replace("\t", "").isprintable()

    return Target("terminal", run, (UnicodeDecodeError,), (b"\x1b[2J", "\u202e".encode()))
