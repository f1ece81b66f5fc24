from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from node.errors import NodeError, RunFolderBusy
from node.monitor.logs import start_logging
from node.monitor.sinks import JsonLinesFile
from node.run.preflight import prepare
from node.storage.atomic_files import private_umask
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from swarm.common.clock import SystemClock
from swarm.journal import Journal, backup_path, open_or_restore
from swarm.transport.peer_connections import PeerCache

HOLD = """
import sys
from pathlib import Path
from node.storage.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path: Path):
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path, other_process) -> None:
    folder = RunFolder(tmp_path)
    with (
        pytest.raises(RunFolderBusy, match=f"used by process {other_process.pid}"),
        folder.locked(),
    ):
        pass
    assert folder.holder() == other_process.pid


def test_a_killed_process_leaves_the_folder_free(tmp_path: Path, other_process) -> None:
    other_process.kill()
    other_process.wait()
    folder = RunFolder(tmp_path)
    assert folder.holder() is None
    with folder.locked():
        assert folder.holder() == os.getpid()
    assert folder.holder() is None


def test_what_a_killed_process_had_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".status.json.4711.tmp").write_text("{half")
    (tmp_path / "node.toml").write_text("")
    (tmp_path / ".mine.tmp").write_text("a user's own")
    with RunFolder(tmp_path).locked():
        left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".mine.tmp", "lock", "node.toml"]


def test_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_status({"pid": 7, "peers": []})
    folder.write_status({"pid": 8, "peers": []})
    assert folder.read_status() == {"pid": 8, "peers": []}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_folder_without_a_node_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="swarm-node join"):
        RunFolder(tmp_path).read_status()


def test_a_status_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{half")
    with pytest.raises(NodeError, match=r"status\.json"):
        RunFolder(tmp_path).read_status()


def test_a_place_that_cannot_be_a_folder_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError, match="run_dir"):
        RunFolder(tmp_path / "file" / "run").create()


@pytest.fixture
def careless():
    """A user whose files are open to everybody unless a program says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> dict[str, str]:
    """Mode of what other users could look into, by name."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    return {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_nothing_that_a_node_writes_is_for_other_users(tmp_path, careless):
    folder, _ = prepare(tmp_path / "node")
    journal = Journal(folder.journal, SystemClock())
    journal.next_sequence()
    journal.backup()
    assert {p.name for p in folder.root.glob("journal*")} >= {
        "journal.sqlite-wal",
        "journal.sqlite-shm",
        "journal.sqlite.backup",
    }
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    start_logging(folder.log, "info")
    logging.getLogger().handlers[0].close()
    logging.getLogger().handlers[:], logging.getLogger().level = handlers, level
    JsonLinesFile(folder.metrics, 1 << 20).close()
    folder.write_status({})
    PeerCache(folder.peer_cache).remember(["/ip4/127.0.0.1/tcp/1"])
    assert open_to_others(folder.root) == {}
    with folder.locked():
        Checkpoints(folder.checkpoints).save(1, lambda draft: (draft / "x").write_bytes(b""), {})
        subprocess.run([sys.executable, "-c", "open('child', 'w')"], cwd=folder.root, check=True)
        assert open_to_others(folder.root) == {}
    journal.close()
    folder.journal.write_bytes(b"damaged")
    restored, _ = open_or_restore(folder.journal, SystemClock())
    restored.close()
    folder.journal.unlink()
    backup_path(folder.journal).unlink()
    assert open_to_others(folder.root) == {}


def test_the_umask_of_a_caller_comes_back(careless):
    with private_umask():
        assert os.umask(0o077) == 0o077
    assert os.umask(0) == 0


def test_an_older_folder_is_taken_from_other_users_and_says_so(tmp_path, careless, caplog):
    root = tmp_path / "old"
    root.mkdir(mode=0o755)
    names = ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite.backup", "node.log.1"]
    names += ["checkpoints/step-00000001/model.safetensors", "tensorboard/events", "status.json"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    (root / "essay.txt").write_bytes(b"")
    assert len(open_to_others(root)) == len(names) + 2 + 3
    with caplog.at_level("INFO"), RunFolder(root).locked():
        assert set(open_to_others(root)) == {str(root / "essay.txt")}, "which is not ours"
    assert "is yours alone now" in caplog.text
    assert "10 files in" in caplog.text
    caplog.clear()
    with RunFolder(root).locked():
        assert caplog.text == ""


def test_a_folder_that_is_everybodys_stays_so(tmp_path):
    tmp_path.chmod(0o1777)
    with RunFolder(tmp_path).locked():
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_who_holds_a_folder_is_found_without_writing_to_it(
    tmp_path: Path, other_process, monkeypatch
) -> None:
    opened = os.open

    def read_only(path, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "touch", lambda *_, **__: pytest.fail("it was touched"))
    before = (tmp_path / "lock").stat()
    assert RunFolder(tmp_path).holder() == other_process.pid
    assert RunFolder(tmp_path / "nowhere").holder() is None
    assert (tmp_path / "lock").stat().st_mtime_ns == before.st_mtime_ns
