import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from node.errors import CheckpointError, DiskFullError, NodeError
from node.storage import checkpoints as module
from node.storage.checkpoints import DIGESTS, READERS, Checkpoints, list_checkpoints

ADDED = "is missing or was added"


def writer(text):
    def write(folder):
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_text(text)
        (folder / "optimizer.bin").write_text(f"optimizer of {text}")

    return write


@contextmanager
def another_process_reading(folder):
    """Start a process that reads checkpoints until its standard input closes."""
    program = (
        "import sys; from pathlib import Path; from node.storage.checkpoints import Checkpoints\n"
        "with Checkpoints(Path(sys.argv[1])).reading():\n"
        "    print('reads', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == b"reads\n"
        yield
        reader.stdin.close()


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


@pytest.fixture
def three_saved(checkpoints):
    for step in (1, 2, 3):
        checkpoints.save(step, writer(f"weights {step}"), {"step": step, "round": 10 * step})
    return checkpoints


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def weights(checkpoints):
    """Return the newest checkpoint's weights; loading it must give no notes."""
    loaded = checkpoints.load_latest()
    assert loaded is not None and loaded.notes == ()
    return (loaded.path / "model" / "weights.bin").read_text()


def test_checkpoints_stay_while_another_process_reads_them(three_saved):
    with another_process_reading(three_saved.folder):
        with pytest.raises(NodeError, match=r"another process uses .* eval or export"):
            three_saved.roll_back(2)
        for step in (4, 5):
            three_saved.save(step, writer(f"weights {step}"), {})
        assert three_saved.steps() == [2, 3, 4, 5]
    three_saved.save(6, writer("weights 6"), {})
    assert three_saved.steps() == [5, 6] and three_saved.roll_back(5) == [6]


def test_a_read_only_folder_can_be_read_but_not_rolled_back(three_saved, monkeypatch, caplog):
    (three_saved.folder / READERS).unlink()
    with monkeypatch.context() as patch:
        refuse = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
        patch.setattr(Path, "open", refuse)
        with three_saved.reading():
            assert three_saved.steps() == [2, 3]
    assert "Read-only file system" in caplog.text and "may delete" in caplog.text
    (three_saved.folder / READERS).mkdir()
    with pytest.raises(NodeError, match=str(three_saved.folder)):
        three_saved.roll_back(2)
    assert three_saved.steps() == [2, 3]


def test_reading_without_checkpoints_creates_no_folder(checkpoints):
    with checkpoints.reading():
        assert checkpoints.steps() == []
    assert not checkpoints.folder.exists() and checkpoints.load_latest() is None


def test_newest_checkpoint_loads_unchanged_and_two_are_kept(three_saved):
    assert weights(three_saved) == "weights 3"
    assert three_saved.load_latest().state == {"step": 3, "round": 30}
    assert three_saved.steps() == [2, 3]
    names = sorted(p.name for p in three_saved.folder.iterdir())
    assert names == ["readers.lock", "step-00000002", "step-00000003"]


def digests(text):
    return lambda folder: (folder / DIGESTS).write_text(text)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "model/weights.bin").write_text("weights X"), "damaged"),
        (lambda f: os.truncate(f / "optimizer.bin", 4), "damaged"),
        (lambda f: os.truncate(f / "digests.json", 9), "damaged"),
        (lambda f: (f / "state.json").unlink(), "damaged"),
        (lambda f: (f / "digests.json").unlink(), "damaged"),
        (lambda f: (f / "model/extra.bin").write_text("not ours"), ADDED),
        (lambda f: (f / "model/more.bin").write_text(""), ADDED),
        (lambda f: (f / "model/weights.bin").unlink(), ADDED),
        *((digests(text), "damaged") for text in ("[]", "3", "[" * 100_000, "null", "{")),
    ],
)
def test_load_reports_damage_and_uses_the_previous_checkpoint(three_saved, damage, told):
    damage(three_saved.path(3))
    loaded = three_saved.load_latest()
    assert loaded is not None and loaded.state["step"] == 2
    assert "step-00000003 is damaged" in loaded.notes[0] and told in loaded.notes[0]
    assert "step-00000002" in loaded.notes[-1]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_temporary_read_error_is_not_reported_as_damage(three_saved, monkeypatch, code):
    failed = Mock(side_effect=OSError(code, os.strerror(code)))
    monkeypatch.setattr("hashlib.file_digest", failed)
    with pytest.raises(NodeError, match=f"cannot read the checkpoints .{os.strerror(code)}.*step-"):
        three_saved.load_latest()
    failed.side_effect = OSError(errno.EIO, "a disk error")
    with pytest.raises(CheckpointError, match="damaged"):
        three_saved.load_latest()


def test_save_replaces_damaged_later_checkpoints(three_saved):
    def damage(step):
        (three_saved.path(step) / "optimizer.bin").write_text("")

    damage(3)
    three_saved.save(3, writer("weights 3 again"), {"step": 3})
    assert weights(three_saved) == "weights 3 again"
    damage(3)
    three_saved.save(2, writer("weights 2 again"), {"step": 2})
    assert three_saved.steps() == [2]
    damage(2)
    with pytest.raises(CheckpointError, match="Restore that folder from a backup"):
        three_saved.load_latest()


def full_disk(folder):
    (folder / "weights.bin").write_text("half")
    with Path("/dev/full").open("wb") as device:
        device.write(b"the other half")


def full_disk_for_safetensors(folder):
    """Fail as safetensors does, which deletes its file and so frees the disk."""
    raise SafetensorError("Error while serializing: I/O error: (os error 28)")


def broken(folder):
    (folder / "weights.bin").write_text("half")
    raise RuntimeError("tensor on the wrong device")


@pytest.mark.parametrize(
    ("write", "error", "told"),
    [
        (full_disk, DiskFullError, "Free some space"),
        (full_disk_for_safetensors, DiskFullError, "Free some space"),
        (broken, RuntimeError, "wrong device"),
    ],
)
def test_failed_save_keeps_earlier_checkpoints_unchanged(three_saved, write, error, told):
    before = contents(three_saved.folder)
    with pytest.raises(error, match=told):
        three_saved.save(4, write, {"step": 4})
    assert contents(three_saved.folder) == before and hidden(three_saved) == []


def hidden(checkpoints):
    return [p.name for p in checkpoints.folder.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("process", [99999, os.getpid()], ids=["killed", "same pid"])
def test_next_save_removes_files_from_killed_processes(three_saved, process):
    for name in (f".draft-{process}", f".old-{process}"):
        (three_saved.folder / name).mkdir()
        (three_saved.folder / name / "weights.bin").write_text("half")
    assert three_saved.load_latest().state["step"] == 3
    three_saved.save(3, writer("weights 3 again"), {"step": 3})
    assert three_saved.steps() == [2, 3]
    assert hidden(three_saved) == [], "the replaced checkpoint is deleted"


def test_process_killed_during_deletion_leaves_no_partial_folder(three_saved, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(folder, **_):
        (folder / DIGESTS).unlink()
        raise Killed

    monkeypatch.setattr(module.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        three_saved.save(4, writer("weights 4"), {"round": 40})
    monkeypatch.undo()
    for each in list_checkpoints(three_saved):
        each.load()
    three_saved.save(5, writer("weights 5"), {"round": 50})
    assert not list(three_saved.folder.glob(".old-*"))


def test_only_folders_with_exact_names_are_checkpoints(checkpoints):
    last = 123_456_789
    checkpoints.save(last, writer("weights"), {"step": last})
    odd = "step-000000000009", "step-" + "9" * 200, "step-0000000٩", "step-00000009\n"
    for name in ("step-00000007.bak", *odd):
        (checkpoints.folder / name).mkdir()
    (checkpoints.folder / "step-00000008").write_text("")
    assert checkpoints.steps() == [entry.round for entry in list_checkpoints(checkpoints)] == [last]
    assert checkpoints.load_latest().state == {"step": last}


def test_checkpoint_is_private_and_flushed_before_the_rename(checkpoints, monkeypatch):
    flushed: list[Path] = []

    def note(path):
        assert path.exists()
        flushed.append(path)

    monkeypatch.setattr(module, "fsync_path", note)
    before = os.umask(0)
    try:
        saved = checkpoints.save(1, writer("weights"), {"step": 1})
    finally:
        os.umask(before)
    draft = checkpoints.folder / f".draft-{os.getpid()}"
    inside = {p.relative_to(saved) for p in saved.rglob("*")}
    assert {p.relative_to(draft) for p in flushed[:-1]} == {*inside, Path()}
    assert flushed[-1] == checkpoints.folder
    assert saved.stat().st_mode & 0o777 == 0o700


def test_best_checkpoints_per_swarm_are_also_kept(checkpoints):
    checkpoints.best = 2
    rewards = [("a", 0.9), ("a", 0.5), ("b", 0.1), ("a", 0.7), ("b", 0.0), ("b", 0.1)]
    for step, (swarm, reward) in enumerate(rewards, start=1):
        checkpoints.save(step, writer(f"weights {step}"), {})
        checkpoints.rewards.note(step, swarm, reward)
    for step in (7, 8):
        checkpoints.save(step, writer(f"weights {step}"), {})
    assert checkpoints.steps() == [1, 3, 4, 6, 7, 8], "the latest of equal rewards stays"


@pytest.mark.parametrize("damage", ["[", f'{{"1": ["a", {10**400}]}}'])
def test_save_works_despite_unreadable_rewards_file(three_saved, caplog, damage):
    (three_saved.folder / "rewards.json").write_text(damage)
    three_saved.save(4, writer("weights 4"), {})
    assert three_saved.steps() == [3, 4]
    assert "rewards.json cannot be read" in caplog.text
    three_saved.rewards.note(4, "a", 0.5)
    assert three_saved.rewards.read() == {4: ("a", 0.5)}


def test_temporary_read_error_keeps_the_rewards_file(three_saved, monkeypatch):
    three_saved.rewards.note(3, "a", 0.5)
    with monkeypatch.context() as patch:
        failed = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        patch.setattr("pathlib.Path.read_bytes", failed)
        with pytest.raises(NodeError, match=r"cannot read the checkpoints .Too many.*rewards.json"):
            three_saved.rewards.note(4, "a", 0.1)
    assert three_saved.rewards.read() == {3: ("a", 0.5)}


@pytest.fixture
def history(checkpoints):
    checkpoints.keep = 3
    for step in (10, 20, 30):
        checkpoints.save(step, writer(f"weights {step}"), {"policy_step": step - 1})
        checkpoints.rewards.note(step, "a", step / 100)
    return checkpoints


def test_run_continues_from_rolled_back_checkpoint(history):
    assert history.roll_back(10) == [20, 30] and weights(history) == "weights 10"
    assert history.rolled_back().steps() == [20, 30]
    history.save(20, writer("other weights 20"), {})
    history.rewards.note(20, "a", 0.9)
    assert weights(history) == "other weights 20"
    assert history.rolled_back().rewards.read() == {20: ("a", 0.2), 30: ("a", 0.3)}


def test_rollback_restores_set_aside_checkpoints_up_to_limit(history):
    history.roll_back(10)
    assert history.roll_back(20) == [] and weights(history) == "weights 20"
    assert history.rewards.read() == {10: ("a", 0.1), 20: ("a", 0.2)}
    assert history.roll_back(30) == []
    assert (history.steps(), history.rolled_back().steps()) == ([10, 20, 30], [])
    history.best, history.keep = 0, 1
    history.roll_back(10)
    assert history.rolled_back().steps() == [30]


def test_rollback_refuses_damaged_checkpoint(history):
    (history.path(10) / "optimizer.bin").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint damaged.*swarm-node checkpoints"):
        history.roll_back(10)
    assert history.steps() == [10, 20, 30]
