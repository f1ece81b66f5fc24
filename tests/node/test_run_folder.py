from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.errors import NodeError, RunFolderBusy
from node.run_folder import RunFolder

HOLD = """
import sys
from pathlib import Path
from node.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path: Path):
    root = Path(__file__).resolve().parents[2]
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
