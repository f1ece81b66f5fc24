"""Which run folders lie below a folder, and what is said of each."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal

SWARM = "ab" * 32
RECORD = RoundRecord(round=9, policy_step=8, time=1.0, reward_own=0.5).to_dict()


def made(terminal: Terminal, path: str, **status: object) -> RunFolder:
    """A node that init made, with what it last said of itself."""
    assert terminal("init", path) == 0
    folder = RunFolder(Path(path))
    if status:
        folder.write_status({"swarm_name": "sums", "swarm_id": SWARM, "record": RECORD} | status)
    return folder


def found(terminal: Terminal, *args: str) -> dict[str, dict]:
    return {run["path"]: run for run in terminal.json("list", *args)["runs"]}


def test_every_run_folder_is_listed_with_what_is_true_of_its_node(terminal: Terminal) -> None:
    made(terminal, "fresh")
    made(terminal, "a/b/done", state="stopped", time=time.time() - 7200.0)
    made(terminal, "a/died", state="running", time=time.time())
    works = made(terminal, "a/works", state="running", pid=os.getpid(), time=time.time())
    Path("a/plain").mkdir()
    with works.locked():
        runs = found(terminal)
        assert terminal("list") == 0
    states = {path: run["state"] for path, run in runs.items()}
    assert states == {
        "a/b/done": "stopped",
        "a/died": "crashed",
        "a/works": "running",
        "fresh": "new",
    }
    done, fresh = runs["a/b/done"], runs["fresh"]
    assert (done["swarm_id"], done["round"], done["reward"]) == (SWARM, 9, 0.5)
    assert done["age_s"] >= 7200.0
    assert (fresh["swarm_id"], fresh["round"], fresh["reward"], fresh["age_s"]) == (None,) * 4
    line = next(line for line in terminal.out.splitlines() if "a/b/done" in line)
    for shown in ("stopped", "sums", SWARM[:8] + "…", " 9 ", "0.500", "2 h"):
        assert shown in line
    assert SWARM not in terminal.out


@pytest.mark.parametrize("width", ["20", "40", "60", "80"])
def test_no_terminal_is_too_narrow_for_whole_figures_and_for_which_run_they_are_of(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    late = {**RECORD, "round": 1012}
    for path in ("short", "a-folder/of-many/runs-with/a-long-name"):
        made(terminal, path, state="stopped", time=time.time() - 7200.0, record=late)
    assert terminal("list") == 0
    lines = terminal.out.splitlines()
    short = next(line for line in lines if line.split()[:1] == ["short"])
    for shown in (" stopped ", " sums ", SWARM[:8] + "…", " 1012 ", " 0.500 ", " 2 h"):
        assert shown in short
    rest = [line.split()[0] for line in lines if line.strip() and line != short]
    assert "a-folder/of-many/runs-with/a-long-name" in "".join(rest)


def test_a_folder_itself_may_be_a_run_and_the_depth_has_a_bound(terminal: Terminal) -> None:
    made(terminal, "one")
    made(terminal, "one/two/three")
    assert set(found(terminal, "one", "--depth", "0")) == {"one"}
    assert set(found(terminal, "one", "--depth", "1")) == {"one"}
    assert set(found(terminal, "one", "--depth", "2")) == {"one", "one/two/three"}
    assert set(found(terminal, "one/two/three")) == {"one/two/three"}


def test_links_are_not_followed_nor_hidden_folders_entered(terminal: Terminal) -> None:
    made(terminal, "there/real")
    made(terminal, "there/.hidden/node")
    Path("there/linked").symlink_to(Path("there/real").absolute())
    Path("there/circle").symlink_to(Path("there").absolute())
    assert set(found(terminal, "there")) == {"there/real"}


def test_the_size_is_of_what_the_node_keeps(terminal: Terminal) -> None:
    folder = made(terminal, "node")
    before = found(terminal)["node"]["size"]
    assert before == folder.config.stat().st_size + folder.identity.stat().st_size
    Path("node/somebody-elses").write_bytes(bytes(5000))
    (folder.checkpoints / "step-00000001").mkdir(parents=True)
    (folder.checkpoints / "step-00000001" / "model").write_bytes(bytes(1000))
    Path("node/journal.sqlite-wal").write_bytes(bytes(150))
    (folder.swarms / SWARM).mkdir(parents=True)
    (folder.swarms / SWARM / "journal.sqlite").write_bytes(bytes(50))
    (folder.checkpoints / "link").symlink_to(Path("node/somebody-elses").absolute())
    link = (folder.checkpoints / "link").lstat().st_size
    assert found(terminal)["node"]["size"] == before + 1200 + link


@pytest.fixture
def closed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that may not be looked into, not even by root, who runs some tests."""
    path = Path("closed")
    path.mkdir()
    scandir = os.scandir

    def refuse(folder: Path) -> object:
        if Path(folder) == path:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    return path


def test_what_may_not_be_read_is_counted_and_keeps_nothing_else_from_being_listed(
    terminal: Terminal, closed: Path
) -> None:
    made(terminal, "node")
    told = terminal.json("list")
    assert [run["path"] for run in told["runs"]] == ["node"]
    assert told["unread"] == [str(closed)]


def test_a_run_that_says_nonsense_is_counted_as_well(terminal: Terminal) -> None:
    made(terminal, "node")
    made(terminal, "odd").status.write_text("{")
    made(terminal, "strange").status.write_text("[[1, 2, 3]]")
    assert terminal("list") == 0
    assert "2 folders could not be read, such as odd" in terminal.err
    assert "node" in terminal.out and "odd" not in terminal.out


def test_nothing_found_and_no_such_folder_are_told_apart(terminal: Terminal) -> None:
    assert terminal("list") == 0
    assert "no run folders" in terminal.out
    assert terminal("list", "nowhere") == 2
    assert "no such folder: nowhere" in terminal.err


def test_a_checkpoint_that_a_running_node_takes_away_meanwhile_is_no_error(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(terminal, "node")
    draft = folder.checkpoints / "draft"
    draft.mkdir(parents=True)
    (draft / "model").write_bytes(bytes(1000))
    walk = os.walk

    def walk_and_lose(top: Path, **options: object) -> list:
        seen = list(walk(top, **options))
        shutil.rmtree(top, ignore_errors=True)
        return seen

    monkeypatch.setattr(os, "walk", walk_and_lose)
    assert found(terminal)["node"]["size"] > 0
