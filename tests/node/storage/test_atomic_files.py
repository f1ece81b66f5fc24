from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import DiskFullError, NodeError
from node.storage.atomic_files import write_atomic, write_error, write_new


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is opened turns out to be on a full disk."""
    really_open = Path.open

    def on_full_disk(self: Path, mode: str = "r", *args, **kwargs):
        if "w" in mode or "a" in mode:
            self.touch()
            return really_open(Path("/dev/full"), mode, *args, **kwargs)
        return really_open(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", on_full_disk)


def test_a_full_disk_leaves_the_old_content_and_is_named_with_the_remedy(
    tmp_path: Path, full: None
) -> None:
    file = tmp_path / "status.json"
    file.touch()
    with pytest.raises(DiskFullError, match=r"status\.json. Free some space"):
        write_atomic(file, b"new")
    assert file.read_bytes() == b""
    assert list(tmp_path.iterdir()) == [file]


def test_what_stands_in_the_way_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="No such file or directory"):
        write_atomic(tmp_path / "nowhere" / "file", b"")
    with pytest.raises(NodeError, match="File exists"):
        (tmp_path / "file").touch()
        write_new(tmp_path / "file", b"")
    denied = write_error(tmp_path / "file", PermissionError(13, "Permission denied"))
    assert "Permission denied" in str(denied) and "permissions" in str(denied)
