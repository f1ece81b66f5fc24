"""A node refuses unusable input and loses no data."""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from node.network.creation import create_swarm
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.end_to_end.commands import NOBODY, PATIENCE, QUICK, ROOT, Command

pytestmark = pytest.mark.processes

DISK_KIB = 8192


def append(name: str, text: str) -> Callable[[RunFolder], None]:
    def change(folder: RunFolder) -> None:
        with (folder.root / name).open("a") as file:
            file.write(text)

    return change


def damage_checkpoints(folder: RunFolder) -> None:
    for weights in folder.checkpoints.glob("*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-9] + b"something")


def take_other_key(folder: RunFolder) -> None:
    folder.identity.unlink()
    Identity.create(folder.identity)


def take_other_manifest(folder: RunFolder) -> None:
    folder.manifest.write_bytes(create_swarm(Identity.generate(), name="another"))


def reset_run(folder: RunFolder) -> None:
    for path in folder.root.iterdir():
        if path not in (folder.config, folder.identity):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def shorten_context(folder: RunFolder) -> None:
    reset_run(folder)
    model = folder.root / "short"
    shutil.copytree(ROOT / "node" / "models" / "tiny", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4}))


def leave_space(kib: int) -> Callable[[RunFolder], None]:
    def fill(folder: RunFolder) -> None:
        free = shutil.disk_usage(folder.root).free - (kib << 10)
        (folder.root.parent / "filler").write_bytes(bytes(max(0, free)))

    return fill


@dataclass(frozen=True)
class Case:
    """A fault, the expected exit status and words of the one error line.

    An ``option`` without dashes becomes a ``--set`` option. Faults that concern every node are
    given to a bootstrap node, which starts faster because it loads no model.
    """

    name: str
    status: int
    words: tuple[str, ...]
    option: str = ""
    change: Callable[[RunFolder], object] = bool
    full: bool = False
    command: str = "join"
    occupied: bool = False


AtBootstrap = partial(Case, command="bootstrap")
BAD_MANIFEST = ("manifest.swarm", "is not valid", "Restore")
NO_BOOTSTRAP = ("no peer answered within 10 seconds", "connection refused", "swarm-node doctor")
NO_CHECKPOINT = ("no checkpoint can be read", "model.safetensors", "Restore that folder")
NO_DISK = ("no space left to write a checkpoint", "earlier checkpoints are kept")
NO_FAMILY = ("tasks.weights", "'sudokuu'", "use ")
NO_LOCK = ("no space left", "lock", "Free some space")
NO_MODEL = ("policy.model", "no such folder", "hub id")
NO_PORT = ("network.listen", "another process uses port", "0 draws a free one")
NO_SPACE = ("no prompt leaves space for a completion", "context 4", "Choose a model")
OTHER_DTYPE = ("policy.dtype: 'bfloat16'", "'float32'")
OTHER_KEY = ("belongs to another identity", "Put the earlier file back")
OTHER_MANIFEST = ("belongs to another swarm", "Put the earlier file back")
OTHER_MODEL = ("policy.model: 'tiny-wide'", "'tiny'", "node.run_dir")
OTHER_SWARM = ("network.swarm", "belongs to swarm", "correct the key")
OPEN_KEY = ("identity.key", "chmod 600")
DEAD = f"--peers={NOBODY} network.start_timeout=10"
RARELY = "schedule.checkpoint_every=1000"
CASES = (
    Case("not TOML", 2, ("node.toml", "line"), change=append("node.toml", "\nlr = = 1\n")),
    AtBootstrap("a port in use", 1, NO_PORT, occupied=True),
    Case("a mistyped peer id", 2, ("network.peers", "peer's id"), f"--peers={NOBODY[:-1]}"),
    Case("a missing model", 2, NO_MODEL, "policy.model=/nowhere/model", reset_run),
    Case("no GPU", 2, ("policy.device", "'auto' or 'cpu'"), "policy.device=cuda:99"),
    Case("an unknown family", 2, NO_FAMILY, "tasks.weights.sudokuu=1.0"),
    Case("prompts too long", 1, NO_SPACE, "policy.model=short", shorten_context),
    AtBootstrap("a dead bootstrap peer", 1, NO_BOOTSTRAP, DEAD, reset_run),
    AtBootstrap("a key others can read", 1, OPEN_KEY, change=lambda f: f.identity.chmod(0o640)),
    AtBootstrap("another node's key", 1, OTHER_KEY, change=take_other_key),
    AtBootstrap("another swarm's manifest", 1, OTHER_MANIFEST, change=take_other_manifest),
    AtBootstrap("a damaged manifest", 1, BAD_MANIFEST, change=append("manifest.swarm", "x")),
    AtBootstrap("another swarm than wanted", 2, OTHER_SWARM, f"network.swarm='{'a' * 64}'"),
    Case("damaged checkpoints", 1, NO_CHECKPOINT, change=damage_checkpoints),
    Case("another model than begun with", 2, OTHER_MODEL, "policy.model=tiny-wide"),
    Case("another dtype than begun with", 2, OTHER_DTYPE, "policy.dtype=bfloat16"),
    AtBootstrap("a full disk", 1, NO_LOCK, change=leave_space(0), full=True),
    Case("a disk too full for a checkpoint", 1, NO_DISK, "", leave_space(1024), True),
    Case("a disk that the journal fills", 1, ("ree some space",), RARELY, leave_space(160), True),
)


class Ending(NamedTuple):
    status: int
    err: list[str]
    intact: bool


@pytest.fixture(scope="module")
def endings(stopped, tmp_path_factory) -> Iterator[Callable[[Case], Ending]]:
    """Run all cases, two at a time; return a function that gives a case's result."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:

        def run(case: Case, folder: Path) -> Ending:
            shutil.copytree(stopped.run.root, folder / "swarm-run")
            node = RunFolder(folder / "swarm-run")
            case.change(node)
            before, parts = learned(node), case.option.split()
            options = [each if each.startswith("--") else f"--set={each}" for each in parts]
            if case.occupied:
                server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                port = server.getsockname()[1]
                options = [f'--set=network.listen=["/ip4/127.0.0.1/tcp/{port}"]']
            with Command(folder, case.command, *QUICK, *options, forked=True) as command:
                status = command.wait()
                if case.full:
                    intact = Checkpoints(node.checkpoints).load_latest() is not None
                else:
                    intact = before.items() <= learned(node).items()
                return Ending(status, command.err, intact)

        futures = {}
        for case in CASES:
            folder = tmp_path_factory.mktemp("case")
            if not case.full or mount(folder, stack):
                futures[case] = pool.submit(run, case, folder)

        def ending(case: Case) -> Ending:
            if case not in futures:
                pytest.skip("this machine allows no mount")
            return futures[case].result(PATIENCE)

        yield ending


def mount(folder: Path, stack: ExitStack) -> bool:
    """Mount a small disk at ``folder``; return whether that worked."""
    disk = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(disk, capture_output=True).returncode:
        return False
    stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
    return True


def learned(folder: RunFolder) -> dict[str, str]:
    files = [*folder.checkpoints.rglob("*"), folder.identity, folder.manifest, folder.metrics]
    return {str(f): sha256(f.read_bytes()).hexdigest() for f in files if f.is_file()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_node_reports_bad_input_with_fix_and_keeps_data(case, endings):
    ending = endings(case)
    lines = [line for line in ending.err if "; trying again for 10 s" not in line]
    (line,) = [line for line in lines if not (case.full and " failed: " in line)]
    assert line.startswith("error: ")
    assert [word for word in case.words if word not in line] == []
    assert ending.status == case.status
    assert ending.intact
