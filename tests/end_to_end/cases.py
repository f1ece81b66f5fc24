"""What can be wrong before a node starts, and what it has to say to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from commands import NOBODY, ROOT

from node.network.founding import found_swarm
from node.storage.run_folder import RunFolder
from protocol.identity import Identity


def nothing(folder: RunFolder) -> None:
    pass


def append(name: str, text: str) -> Callable[[RunFolder], None]:
    def change(folder: RunFolder) -> None:
        with (folder.root / name).open("a") as file:
            file.write(text)

    return change


def damage_checkpoints(folder: RunFolder) -> None:
    for weights in folder.checkpoints.glob("*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-9] + b"something")


def share_key(folder: RunFolder) -> None:
    folder.identity.chmod(0o640)


def take_other_key(folder: RunFolder) -> None:
    folder.identity.unlink()
    Identity.create(folder.identity)


def take_other_manifest(folder: RunFolder) -> None:
    folder.manifest.write_bytes(found_swarm(Identity.generate(), name="another"))


def begin_anew(folder: RunFolder) -> None:
    for path in folder.root.iterdir():
        if path not in (folder.config, folder.identity):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def shorten_context(folder: RunFolder) -> None:
    model = folder.root / "short"
    begin_anew(folder)
    shutil.copytree(ROOT / "node" / "models" / "tiny", model)
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = 4
    (model / "config.json").write_text(json.dumps(config))


def leave_space(kib: int) -> Callable[[RunFolder], None]:
    def fill(folder: RunFolder) -> None:
        free = shutil.disk_usage(folder.root).free - (kib << 10)
        (folder.root.parent / "filler").write_bytes(bytes(max(0, free)))

    return fill


@dataclass(frozen=True)
class Case:
    """What is wrong, and what has to be said: the exit status and words of the one line.

    What concerns every node is told to a seed, which starts sooner as it loads no model.
    """

    name: str
    status: int
    words: tuple[str, ...]
    options: tuple[str, ...] = ()
    change: Callable[[RunFolder], None] = nothing
    full: bool = False
    command: str = "join"
    occupied: bool = False


CASES = (
    Case(
        "an unknown key",
        2,
        ("learner.lrr", "did you mean learner.lr?"),
        ("--set=learner.lrr=1",),
    ),
    Case("a wrong type", 2, ("learner.lr: 'fast'", "a number"), ("--set=learner.lr=fast",)),
    Case("a contradiction", 2, ("mixture.local", "raise either"), ("--mix=0/0",)),
    Case("not TOML", 2, ("node.toml", "line"), change=append("node.toml", "\nlr = = 1\n")),
    Case(
        "a port in use",
        1,
        ("network.listen", "another process uses port", "0 draws a free one"),
        command="bootstrap",
        occupied=True,
    ),
    Case(
        "an impossible port",
        2,
        ("network.listen", "multiaddress such as"),
        ('--set=network.listen=["/ip4/127.0.0.1/tcp/70000"]',),
    ),
    Case(
        "a mistyped peer id",
        2,
        ("network.peers", "peer's id"),
        (f"--peers={NOBODY[:-1]}",),
    ),
    Case(
        "a missing model",
        2,
        ("policy.model", "no such folder", "hub id"),
        ("--set=policy.model=/nowhere/model",),
        begin_anew,
    ),
    Case("no GPU", 2, ("policy.device", "'auto' or 'cpu'"), ("--set=policy.device=cuda:99",)),
    Case(
        "an unknown family",
        2,
        ("tasks.weights", "'sudokuu'", "use "),
        ("--set=tasks.weights.sudokuu=1.0",),
    ),
    Case(
        "prompts too long",
        1,
        ("no prompt leaves room for an answer", "context 4", "Choose a model"),
        ("--set=policy.model=short",),
        shorten_context,
    ),
    Case(
        "a dead bootstrap peer",
        1,
        ("no peer answered within 10 seconds", "connection refused", "swarm-node doctor"),
        (f"--peers={NOBODY}", "--set=network.start_timeout=10"),
        begin_anew,
        command="bootstrap",
    ),
    Case(
        "a key others can read",
        1,
        ("identity.key", "chmod 600"),
        change=share_key,
        command="bootstrap",
    ),
    Case(
        "another node's key",
        1,
        ("belongs to another identity", "Put the earlier file back"),
        change=take_other_key,
        command="bootstrap",
    ),
    Case(
        "another swarm's manifest",
        1,
        ("belongs to another swarm", "Put the earlier file back"),
        change=take_other_manifest,
        command="bootstrap",
    ),
    Case(
        "a damaged manifest",
        1,
        ("manifest.swarm", "is not valid", "Restore"),
        change=append("manifest.swarm", "x"),
        command="bootstrap",
    ),
    Case(
        "another swarm than wanted",
        2,
        ("network.swarm", "belongs to swarm", "correct the key"),
        (f"--set=network.swarm='{'a' * 64}'",),
        command="bootstrap",
    ),
    Case(
        "damaged checkpoints",
        1,
        ("no checkpoint can be read", "model.safetensors", "Restore that folder"),
        change=damage_checkpoints,
    ),
    Case(
        "another model than begun with",
        2,
        ("policy.model: 'tiny-wide'", "'tiny'", "node.run_dir"),
        ("--set=policy.model=tiny-wide",),
    ),
    Case(
        "another dtype than begun with",
        2,
        ("policy.dtype: 'bfloat16'", "'float32'"),
        ("--set=policy.dtype=bfloat16",),
    ),
    Case(
        "a full disk",
        1,
        ("no space left", "lock", "Free some space"),
        (),
        leave_space(0),
        True,
        command="bootstrap",
    ),
    Case(
        "a disk too full for a checkpoint",
        1,
        ("no space left to write a checkpoint", "earlier checkpoints are kept"),
        (),
        leave_space(1024),
        True,
    ),
    Case(
        "a disk that the journal fills",
        1,
        ("ree some space",),
        ("--set=schedule.checkpoint_every=1000",),
        leave_space(160),
        True,
    ),
)
