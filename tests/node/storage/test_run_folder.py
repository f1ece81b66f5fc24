import errno
import fcntl
import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from node.errors import DiskFullError, NodeError, RunFolderBusy
from node.monitor.logs import start_logging
from node.monitor.sinks import JsonLinesFile
from node.run.preflight import prepare
from node.storage.atomic_files import filling, private_umask, write_atomic, write_error, write_new
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder, SwarmFiles
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
SWARM_A, SWARM_B = "aa" * 32, "bb" * 32
FILES_A = {
    "manifest.swarm": b"here",
    "journal.sqlite": b"rows of here",
    "journal.sqlite-wal": b"late rows of here",
    "journal.sqlite.backup": b"copy of here",
    "peers.json": b"peers of here",
}
OWN = {"identity.key": b"key", "node.toml": b"config", "metrics.jsonl": b"lines"}


@pytest.fixture
def other_process(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **streams, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_lock_error_names_the_holding_process_until_it_is_killed(tmp_path, other_process):
    folder = RunFolder(tmp_path)
    holds = f"used by process {other_process.pid}"
    with pytest.raises(RunFolderBusy, match=holds), folder.locked():
        pass
    assert folder.holder() == other_process.pid
    other_process.kill()
    other_process.wait()
    assert folder.holder() is None
    with folder.locked():
        assert folder.holder() == os.getpid()
    assert folder.holder() is None


def test_lock_removes_partial_files_from_killed_process(tmp_path):
    (tmp_path / ".status.json.4711.tmp").write_text("{half")
    (tmp_path / "node.toml").write_text("")
    (tmp_path / ".mine.tmp").write_text("a user's own")
    with RunFolder(tmp_path).locked():
        left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".mine.tmp", "lock", "node.toml"]


def test_status_round_trips_and_invalid_files_are_rejected(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(NodeError, match="swarm-node join"):
        folder.read_status()
    for status in ({"pid": 7, "peers": []}, {"pid": 8, "peers": []}):
        folder.write_status(status)
    assert folder.read_status() == {"pid": 8, "peers": []}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]
    wrong = ({"time": []}, {"time": 10**400}, {"time": float("nan")}, {"peers": [1]}, [], 7)
    records = ({"record": [1]}, {"record": {"round": "x"}}, {"record": {"reward_local": {}}})
    names = ({"swarm_id": 5}, {"swarm_name": ["x"]}, {"addresses": "x"})
    for text in ("{half", *map(json.dumps, (*wrong, *records, *names))):
        folder.status.write_text(text)
        with pytest.raises(NodeError, match=r"status\.json"):
            folder.read_status()


@pytest.fixture
def careless():
    """Set umask 0, so that new files are open to all users by default."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root):
    """Return the modes of paths that are open to other users, by path."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    return {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_node_files_are_private_to_their_user(tmp_path, careless):
    folder, _ = prepare(tmp_path / "node")
    journal = Journal(folder.journal, SystemClock())
    journal.next_sequence()
    journal.backup()
    needed = {f"journal.sqlite{end}" for end in ("-wal", "-shm", ".backup")}
    assert {p.name for p in folder.root.glob("journal*")} >= needed
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    start_logging(folder.log, "info")
    root.handlers[0].close()
    root.handlers[:], root.level = handlers, level
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
    with private_umask():
        assert os.umask(0o077) == 0o077
    assert os.umask(0) == 0, "the caller's umask is restored"


def test_lock_makes_an_older_folder_private_and_logs_it(tmp_path, careless, caplog):
    root = tmp_path / "old"
    root.mkdir(mode=0o755)
    names = ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite.backup", "node.log.1"]
    names += ["checkpoints/step-00000001/model.safetensors", "tensorboard/events", "status.json"]
    for name in [*names, "essay.txt"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    assert len(open_to_others(root)) == len(names) + 2 + 3
    with caplog.at_level("INFO"), RunFolder(root).locked():
        assert set(open_to_others(root)) == {str(root / "essay.txt")}, "other files stay unchanged"
    assert "now it is private" in caplog.text and "10 files in" in caplog.text
    caplog.clear()
    with RunFolder(root).locked():
        assert caplog.text == ""


def test_lock_keeps_shared_folder_mode(tmp_path):
    tmp_path.chmod(0o1777)
    with RunFolder(tmp_path).locked():
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_holder_is_read_without_writing_to_the_folder(tmp_path, other_process, monkeypatch):
    opened = os.open

    def read_only(path, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "touch", lambda *_, **__: pytest.fail("a file was touched"))
    before = (tmp_path / "lock").stat()
    assert RunFolder(tmp_path).holder() == other_process.pid
    assert RunFolder(tmp_path / "nowhere").holder() is None
    assert (tmp_path / "lock").stat().st_mtime_ns == before.st_mtime_ns


@pytest.fixture
def folder(tmp_path):
    for name, content in (FILES_A | OWN).items():
        (tmp_path / name).write_bytes(content)
    return RunFolder(tmp_path)


def inside(folder):
    return {path.name: path.read_bytes() for path in folder.root.iterdir() if path.is_file()}


def test_swarm_move_keeps_node_files_and_the_way_back_restores_all(folder):
    SwarmFiles(folder).move(SWARM_A, SWARM_B, b"there")
    assert inside(folder) == OWN | {"manifest.swarm": b"there"}
    assert SwarmFiles(folder).set_aside() == {SWARM_A: b"here"}
    folder.journal.write_bytes(b"rows of there")
    SwarmFiles(folder).move(SWARM_B, SWARM_A, b"here")
    assert inside(folder) == OWN | FILES_A
    SwarmFiles(folder).move(SWARM_A, SWARM_B, b"there")
    assert inside(folder) == OWN | {"manifest.swarm": b"there", "journal.sqlite": b"rows of there"}


class Killed(BaseException):
    """Simulates the end of the process."""


def killed_after(steps, folder, monkeypatch):
    """Move back and die after ``steps`` file moves; return whether it died."""
    replace, left = Path.replace, iter(range(steps))

    def dying(source, target):
        if next(left, None) is None:
            raise Killed
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        try:
            SwarmFiles(folder).move(SWARM_B, SWARM_A, b"here")
        except Killed:
            return True
    return False


@pytest.mark.parametrize("steps", range(11))
def test_lock_completes_a_swarm_move_killed_anywhere_before_any_command(folder, monkeypatch, steps):
    """Otherwise a command would restore the backup and overwrite the journal."""
    SwarmFiles(folder).move(SWARM_A, SWARM_B, b"there")
    folder.journal.write_bytes(b"rows of there")
    before = inside(folder)
    killed = killed_after(steps, folder, monkeypatch)
    assert killed == (steps < 10)
    with folder.locked():
        held = inside(folder)
    begun = steps >= 2  # The plan was written.
    assert held == (OWN | FILES_A if begun else before) | {"lock": held["lock"]}
    assert (SWARM_B in SwarmFiles(folder).set_aside()) == begun
    journal = folder.swarms / SWARM_B / folder.journal.name if begun else folder.journal
    assert journal.read_bytes() == b"rows of there"


def test_check_ignores_folder_removed_during_the_scan(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    draft, listed = folder.checkpoints / ".draft-7", os.scandir
    draft.mkdir(parents=True)

    def gone(path="."):
        if Path(path) == draft:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", gone)
    folder.check()
    (folder.checkpoints / "link").symlink_to(tmp_path)
    with pytest.raises(NodeError, match="a link in the place of what the node writes"):
        folder.check()


def test_settle_without_a_move_is_a_noop_and_names_a_damaged_plan(folder):
    SwarmFiles(folder).settle()
    assert inside(folder) == OWN | FILES_A and not (folder.root / "swarms").exists()
    SwarmFiles(folder).move(SWARM_A, SWARM_B, b"there")
    (folder.root / "swarms" / "move.json").write_text("{}")
    with pytest.raises(NodeError, match=r"move\.json.*backup"):
        SwarmFiles(folder).settle()


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("way", ["left", "entered"])
def test_foreign_plan_moves_no_file_across_the_run_folder(folder, tmp_path, way, link):
    SwarmFiles(folder).move(SWARM_A, SWARM_B, b"there")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "journal.sqlite").write_bytes(b"of another node")
    name = "f" * 64 if link else str(elsewhere)
    if link:
        (folder.swarms / name).symlink_to(elsewhere)
    plan = {"left": SWARM_A, "entered": SWARM_A, "out": way == "entered", way: name}
    (folder.swarms / "move.json").write_text(json.dumps(plan))
    before = inside(folder)
    with pytest.raises(NodeError, match=r"move\.json.*backup"):
        SwarmFiles(folder).settle()
    assert inside(folder) == before
    assert [path.read_bytes() for path in elsewhere.iterdir()] == [b"of another node"]


def test_full_disk_keeps_the_old_content_and_reports_the_fix(tmp_path, monkeypatch):
    """Every opened file is on a full disk."""
    really_open = Path.open

    def on_full_disk(self, mode="r", *args, **kwargs):
        writes = "w" in mode or "a" in mode
        if writes:
            self.touch()
        return really_open(Path("/dev/full") if writes else self, mode, *args, **kwargs)

    file = tmp_path / "status.json"
    file.touch()
    monkeypatch.setattr(Path, "open", on_full_disk)
    with pytest.raises(DiskFullError, match=r"status\.json. Free some space"):
        write_atomic(file, b"new")
    assert file.read_bytes() == b"" and list(tmp_path.iterdir()) == [file]


def test_read_only_error_names_the_file_not_its_draft(tmp_path, monkeypatch):
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS), "draft")
    monkeypatch.setattr(Path, "open", Mock(side_effect=refused))
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=refused))
    with pytest.raises(NodeError, match=r"cannot write \(Read-only file system\): '?/.*/trusted"):
        write_atomic(tmp_path / "trusted", b"new")


def test_macos_flushes_durable_files_from_the_disk_cache(tmp_path, monkeypatch):
    flushed, synced = [], []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, how: flushed.append(how))
    monkeypatch.setattr(os, "fsync", synced.append)
    write_atomic(tmp_path / "durable", b"x")
    write_new(tmp_path / "new", b"x")
    assert flushed == [51, 51, 51] and synced == [], "a file, its folder and another file"
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.ENOTSUP, "no such call")))
    write_new(tmp_path / "elsewhere", b"x")
    assert len(synced) == 1


def test_write_errors_name_the_cause_and_the_setting(tmp_path):
    with pytest.raises(NodeError, match="No such file or directory"):
        write_atomic(tmp_path / "nowhere" / "file", b"")
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="File exists"):
        write_new(tmp_path / "file", b"")
    denied = write_error(tmp_path / "file", PermissionError(13, "Permission denied"))
    assert "Permission denied" in str(denied) and "permissions" in str(denied)
    with pytest.raises(NodeError, match="run_dir"):
        RunFolder(tmp_path / "file" / "run").create()


def test_failed_cleanup_does_not_hide_the_error(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ValueError, match="no such weight"), filling(folder):
        folder.rmdir()
        raise ValueError("no such weight")
