from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from node.errors import CheckpointError, DiskFullError, NodeError
from node.storage import checkpoints as module
from node.storage.checkpoints import DIGESTS, READERS, Checkpoints


def writer(text: str):
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_text(text)
        (folder / "optimizer.bin").write_text(f"optimizer of {text}")

    return write


@contextmanager
def another_process_reading(folder: Path) -> Iterator[None]:
    """As eval and export do, which ends when its standard input does."""
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


def full_disk(folder: Path) -> None:
    (folder / "weights.bin").write_text("half")
    with Path("/dev/full").open("wb") as device:
        device.write(b"the other half")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


@pytest.fixture
def three_saved(checkpoints: Checkpoints) -> Checkpoints:
    for step in (1, 2, 3):
        checkpoints.save(step, writer(f"weights {step}"), {"step": step, "round": 10 * step})
    return checkpoints


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_none_is_deleted_while_another_process_reads(three_saved: Checkpoints) -> None:
    with another_process_reading(three_saved.folder):
        for step in (4, 5):
            three_saved.save(step, writer(f"weights {step}"), {})
        assert three_saved.steps() == [2, 3, 4, 5]
    three_saved.save(6, writer("weights 6"), {})
    assert three_saved.steps() == [5, 6]


def test_nothing_is_set_aside_while_another_process_reads(three_saved: Checkpoints) -> None:
    with (
        another_process_reading(three_saved.folder),
        pytest.raises(NodeError, match=r"another process reads .* eval or export"),
    ):
        three_saved.roll_back(2)
    assert three_saved.steps() == [2, 3]
    assert three_saved.roll_back(2) == [3]


def test_what_lies_where_nobody_may_write_can_be_read(
    three_saved: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, mode: str = "r") -> BinaryIO:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    (three_saved.folder / READERS).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with three_saved.reading():
            assert three_saved.steps() == [2, 3]
    assert "Read-only file system" in caplog.text and "may delete" in caplog.text


def test_where_the_lock_cannot_be_had_going_back_says_so(three_saved: Checkpoints) -> None:
    (three_saved.folder / READERS).unlink()
    (three_saved.folder / READERS).mkdir()
    with pytest.raises(NodeError, match=str(three_saved.folder)):
        three_saved.roll_back(2)
    assert three_saved.steps() == [2, 3]


def test_where_there_is_no_checkpoint_there_is_nothing_to_keep(checkpoints: Checkpoints) -> None:
    with checkpoints.reading():
        assert checkpoints.steps() == []
    assert not checkpoints.folder.exists()


def test_a_run_without_checkpoints_has_nothing_to_load(checkpoints: Checkpoints) -> None:
    assert checkpoints.load_latest() is None


def test_the_newest_checkpoint_comes_back_as_it_was_written(three_saved: Checkpoints) -> None:
    loaded = three_saved.load_latest()
    assert loaded is not None
    assert (loaded.path / "model" / "weights.bin").read_text() == "weights 3"
    assert loaded.state == {"step": 3, "round": 30}
    assert loaded.notes == ()


def test_only_the_last_two_are_kept(three_saved: Checkpoints) -> None:
    assert three_saved.steps() == [2, 3]
    assert sorted(p.name for p in three_saved.folder.iterdir()) == [
        "readers.lock",
        "step-00000002",
        "step-00000003",
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "model/weights.bin").write_text("weights X"),
        lambda f: os.truncate(f / "optimizer.bin", 4),
        lambda f: os.truncate(f / "digests.json", 9),
        lambda f: (f / "digests.json").write_text("[]"),
        lambda f: (f / "state.json").unlink(),
        lambda f: (f / "digests.json").unlink(),
        lambda f: (f / "model/extra.bin").write_text("not ours"),
    ],
    ids=["changed", "truncated", "digests cut", "digests odd", "no state", "no digests", "added"],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(
    three_saved: Checkpoints, damage
) -> None:
    damage(three_saved.path(3))
    loaded = three_saved.load_latest()
    assert loaded is not None
    assert loaded.state["step"] == 2
    assert "step-00000003 is damaged" in loaded.notes[0]
    assert "step-00000002" in loaded.notes[-1]


def test_when_every_checkpoint_is_damaged_the_run_does_not_silently_start_over(
    three_saved: Checkpoints,
) -> None:
    for step in three_saved.steps():
        (three_saved.path(step) / "optimizer.bin").write_text("")
    with pytest.raises(CheckpointError, match="Restore that folder from a backup"):
        three_saved.load_latest()


def test_going_on_from_an_earlier_checkpoint_replaces_the_damaged_later_ones(
    three_saved: Checkpoints,
) -> None:
    (three_saved.path(3) / "optimizer.bin").write_text("")
    three_saved.save(3, writer("weights 3 again"), {"step": 3})
    loaded = three_saved.load_latest()
    assert loaded is not None and not loaded.notes
    assert (loaded.path / "model" / "weights.bin").read_text() == "weights 3 again"

    (three_saved.path(3) / "optimizer.bin").write_text("")
    three_saved.save(2, writer("weights 2 again"), {"step": 2})
    assert three_saved.steps() == [2]


def test_a_full_disk_leaves_the_earlier_checkpoints_untouched(three_saved: Checkpoints) -> None:
    before = contents(three_saved.folder)
    with pytest.raises(DiskFullError, match="Free some space"):
        three_saved.save(4, full_disk, {"step": 4})
    assert contents(three_saved.folder) == before
    assert not [p for p in three_saved.folder.iterdir() if p.name.startswith(".")]


def test_any_other_failure_of_the_writer_is_passed_on_and_leaves_nothing(
    three_saved: Checkpoints,
) -> None:
    def broken(folder: Path) -> None:
        (folder / "weights.bin").write_text("half")
        raise RuntimeError("tensor on the wrong device")

    before = contents(three_saved.folder)
    with pytest.raises(RuntimeError, match="wrong device"):
        three_saved.save(4, broken, {})
    assert contents(three_saved.folder) == before


def test_what_a_killed_process_left_is_swept_by_the_next_save(three_saved: Checkpoints) -> None:
    left = three_saved.folder / ".draft-99999"
    left.mkdir()
    (left / "weights.bin").write_text("half")
    assert three_saved.load_latest().state["step"] == 3
    three_saved.save(4, writer("weights 4"), {"step": 4})
    assert not left.exists()


def hidden(checkpoints: Checkpoints) -> list[str]:
    return [p.name for p in checkpoints.folder.iterdir() if p.name.startswith(".")]


def test_what_a_process_of_the_same_number_left_is_in_nobodys_way(three_saved: Checkpoints) -> None:
    for name in (f".draft-{os.getpid()}", f".old-{os.getpid()}"):
        (three_saved.folder / name).mkdir()
        (three_saved.folder / name / "weights.bin").write_text("half")
    three_saved.save(3, writer("weights 3 again"), {"step": 3})
    assert three_saved.steps() == [2, 3]
    assert hidden(three_saved) == [], "and nothing is left of the one that was replaced"


@pytest.mark.parametrize("added", [False, True])
def test_a_file_that_is_missing_or_was_added_is_damage(
    three_saved: Checkpoints, added: bool
) -> None:
    if added:
        (three_saved.path(3) / "model" / "more.bin").write_text("")
    else:
        (three_saved.path(3) / "model" / "weights.bin").unlink()
    loaded = three_saved.load_latest()
    assert loaded is not None and loaded.state["step"] == 2
    assert "is missing or was added" in loaded.notes[0]


@pytest.mark.parametrize("digests", ["3", "[" * 100_000, "null", "{"])
def test_digests_of_any_other_shape_are_damage(three_saved: Checkpoints, digests: str) -> None:
    (three_saved.path(3) / DIGESTS).write_text(digests)
    loaded = three_saved.load_latest()
    assert loaded is not None and loaded.state["step"] == 2


def test_a_checkpoint_is_a_folder_of_that_name_and_nothing_else(checkpoints: Checkpoints) -> None:
    last = 123_456_789
    checkpoints.save(last, writer("weights"), {"step": last})
    (checkpoints.folder / "step-00000007.bak").mkdir()
    (checkpoints.folder / "step-00000008").write_text("")
    assert checkpoints.steps() == [last]
    assert checkpoints.load_latest().state == {"step": last}


def test_a_checkpoint_is_private_and_on_the_disk_before_it_takes_its_name(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []

    def note(path: Path) -> None:
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


def test_the_best_are_kept_beside_the_newest_in_each_swarm(checkpoints: Checkpoints) -> None:
    checkpoints.best = 2
    for step, (swarm, reward) in enumerate(
        [("a", 0.9), ("a", 0.5), ("b", 0.1), ("a", 0.7), ("b", 0.0), ("b", 0.1)], start=1
    ):
        checkpoints.save(step, writer(f"weights {step}"), {})
        checkpoints.rewards.note(step, swarm, reward)
    checkpoints.save(7, writer("weights 7"), {})
    checkpoints.save(8, writer("weights 8"), {})
    assert checkpoints.steps() == [1, 3, 4, 6, 7, 8], "of equals the latest"


def test_rewards_that_cannot_be_read_cost_no_checkpoint(three_saved: Checkpoints, caplog) -> None:
    (three_saved.folder / "rewards.json").write_text("[")
    three_saved.save(4, writer("weights 4"), {})
    assert three_saved.steps() == [3, 4]
    assert "rewards.json cannot be read" in caplog.text
    three_saved.rewards.note(4, "a", 0.5)
    assert three_saved.rewards.read() == {4: ("a", 0.5)}


@pytest.fixture
def history(checkpoints: Checkpoints) -> Checkpoints:
    checkpoints.keep = 3
    for step in (10, 20, 30):
        checkpoints.save(step, writer(f"weights {step}"), {"policy_step": step - 1})
        checkpoints.rewards.note(step, "a", step / 100)
    return checkpoints


def weights(checkpoints: Checkpoints) -> str:
    loaded = checkpoints.load_latest()
    assert loaded is not None
    return (loaded.path / "model" / "weights.bin").read_text()


def test_a_run_goes_on_from_where_it_was_rolled_back_to(history: Checkpoints) -> None:
    assert history.roll_back(10) == [20, 30]
    assert weights(history) == "weights 10"
    assert history.rolled_back().steps() == [20, 30]
    history.save(20, writer("other weights 20"), {})
    history.rewards.note(20, "a", 0.9)
    assert weights(history) == "other weights 20"
    assert history.rolled_back().rewards.read() == {20: ("a", 0.2), 30: ("a", 0.3)}


def test_what_was_set_aside_comes_back(history: Checkpoints) -> None:
    history.roll_back(10)
    assert history.roll_back(20) == []
    assert weights(history) == "weights 20"
    assert history.rewards.read() == {10: ("a", 0.1), 20: ("a", 0.2)}
    assert history.roll_back(30) == []
    assert (history.steps(), history.rolled_back().steps()) == ([10, 20, 30], [])


def test_no_more_is_set_aside_than_is_kept(history: Checkpoints) -> None:
    history.best, history.keep = 0, 1
    history.roll_back(10)
    assert history.rolled_back().steps() == [30]


def test_a_damaged_checkpoint_is_not_gone_back_to(history: Checkpoints) -> None:
    (history.path(10) / "optimizer.bin").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint damaged.*swarm-node checkpoints"):
        history.roll_back(10)
    assert history.steps() == [10, 20, 30]
