"""What a folder holds of one swarm, while the node goes to another and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import NodeError
from node.storage.run_folder import RunFolder, SwarmFiles

HERE, THERE = "aa" * 32, "bb" * 32
OF_HERE = {
    "manifest.swarm": b"here",
    "journal.sqlite": b"rows of here",
    "journal.sqlite-wal": b"late rows of here",
    "journal.sqlite.backup": b"copy of here",
    "peers.json": b"peers of here",
}
OWN = {"identity.key": b"key", "node.toml": b"config", "metrics.jsonl": b"lines"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    for name, content in (OF_HERE | OWN).items():
        (tmp_path / name).write_bytes(content)
    return RunFolder(tmp_path)


def inside(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.root.iterdir() if path.is_file()}


def test_a_move_leaves_nothing_of_the_old_swarm_and_all_that_is_the_nodes_own(folder) -> None:
    SwarmFiles(folder).move(HERE, THERE, b"there")
    assert inside(folder) == OWN | {"manifest.swarm": b"there"}
    assert SwarmFiles(folder).set_aside() == {HERE: b"here"}


def test_whoever_goes_back_finds_everything_as_it_was(folder) -> None:
    SwarmFiles(folder).move(HERE, THERE, b"there")
    folder.journal.write_bytes(b"rows of there")
    SwarmFiles(folder).move(THERE, HERE, b"here")
    assert inside(folder) == OWN | OF_HERE
    SwarmFiles(folder).move(HERE, THERE, b"there")
    assert inside(folder) == OWN | {"manifest.swarm": b"there", "journal.sqlite": b"rows of there"}


class Killed(BaseException):
    """The process ends here."""


def killed_after(steps: int, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Go back and be killed after so many files were put anywhere; whether it came to that."""
    replace, left = Path.replace, iter(range(steps))

    def dying(source: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        try:
            SwarmFiles(folder).move(THERE, HERE, b"here")
        except Killed:
            return True
    return False


@pytest.mark.parametrize("steps", range(11))
def test_a_move_that_is_killed_anywhere_is_gone_on_with(folder, monkeypatch, steps: int) -> None:
    SwarmFiles(folder).move(HERE, THERE, b"there")
    folder.journal.write_bytes(b"rows of there")
    before = inside(folder)
    killed = killed_after(steps, folder, monkeypatch)
    assert killed == (steps < 10)
    SwarmFiles(folder).settle()
    begun = steps >= 2  # its plan was written
    assert inside(folder) == (OWN | OF_HERE if begun else before)
    assert (THERE in SwarmFiles(folder).set_aside()) == begun


def test_without_a_move_there_is_nothing_to_settle(folder) -> None:
    SwarmFiles(folder).settle()
    assert inside(folder) == OWN | OF_HERE
    assert not (folder.root / "swarms").exists()


def test_a_plan_that_cannot_be_read_is_named(folder) -> None:
    SwarmFiles(folder).move(HERE, THERE, b"there")
    (folder.root / "swarms" / "move.json").write_text("{}")
    with pytest.raises(NodeError, match=r"move\.json.*backup"):
        SwarmFiles(folder).settle()
