"""Windows behavior, simulated on Linux."""

import ast
import errno
import os
import pty
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from node.engines.weight_snapshot import LOCK, PREFIX, Snapshot
from node.monitor.output import guard_output
from node.monitor.sinks import JsonLinesFile
from node.storage.atomic_files import write_atomic
from node.storage.checkpoints import Checkpoints
from swarm.common import util
from tests.node.monitor.test_monitor import RECORD
from tests.node.programs import ROOT
from tests.parsing import parse
from tests.support import random_policy

BY_MODE = {"open": 0, "fdopen": 1}
TEXT = {"read_text", "write_text", "TextIOWrapper", "FileHandler", "RotatingFileHandler"}
OTHERS = ("tasks.open", "muxed.open", "relay.open")  # These open no files.


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")


def as_text(call):
    """Return whether a call opens text in the system's encoding."""
    name = ast.unparse(call.func).rpartition(".")[2]
    kwargs = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in kwargs or None in kwargs:
        return False
    if name in ("run", "Popen", "check_output"):
        return bool(kwargs.keys() & {"text", "universal_newlines"})
    if name not in BY_MODE:
        return name in TEXT
    place = BY_MODE[name] + (name == "open" and isinstance(call.func, ast.Name))
    mode = kwargs.get("mode", call.args[place] if len(call.args) > place else None)
    if mode is None:
        return not call.args
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and "b" not in mode.value


def test_every_text_file_sets_its_encoding():
    """Windows defaults to cp1252, which lacks most characters."""
    found = []
    for folder in ("node", "swarm", "protocol", "experiments"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            calls = ast.walk(parse(path.read_text(encoding="utf-8")))
            found += [
                f"{path.relative_to(ROOT)}:{call.lineno} {ast.unparse(call)[:80]}"
                for call in calls
                if isinstance(call, ast.Call) and as_text(call)
                if not ast.unparse(call.func).endswith(OTHERS)
            ]
    assert found == []


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("path.read_text()", True),
        ("path.write_text(x, encoding='utf-8')", False),
        ("path.open()", True),
        ("path.open('a')", True),
        ("path.open('rb')", False),
        ("open(path)", False),
        ("open(path, 'w')", True),
        ("subprocess.run(x, text=True)", True),
        ("subprocess.run(x)", False),
    ],
)
def test_as_text_finds_text_mode(call, found):
    assert as_text(parse(call).body[0].value) is found


def test_windows_snapshot_uses_a_lock_file(tmp_path, monkeypatch, windows):
    original = os.open

    def opened(path, flags, *mode, **options):
        if "dir_fd" not in options and Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(path, flags, *mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        living = Snapshot(random_policy(), as_checkpoint=False, place=tmp_path)
        abandoned = tmp_path / f"{PREFIX}abandoned"
        abandoned.mkdir()
        for folder in (living.folder, abandoned):
            (folder / LOCK).touch()
            os.utime(folder / LOCK, (0, 0))
        another = Snapshot(random_policy(), as_checkpoint=False, place=tmp_path)
        assert set(tmp_path.iterdir()) == {living.folder, another.folder}
    living.remove()
    another.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("windows")
def test_windows_retries_replacing_a_file_in_use(tmp_path, monkeypatch):
    original, pauses, retries = Path.replace, [], [2]

    def replace(path, target):
        if retries[0]:
            retries[0] -= 1
            raise PermissionError(errno.EACCES, "Access is denied")
        return original(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(time, "sleep", pauses.append)
    write_atomic(tmp_path / "status.json", b"{}", durable=False)
    assert (tmp_path / "status.json").read_bytes() == b"{}" and len(pauses) == 2
    retries[0] = 1000
    (tmp_path / "draft").touch()
    with pytest.raises(PermissionError):
        util.replace(tmp_path / "draft", tmp_path / "status.json")
    assert sum(pauses) < 10
    monkeypatch.setattr(sys, "platform", "linux")
    pauses.clear()
    with pytest.raises(PermissionError):
        util.replace(tmp_path / "draft", tmp_path / "status.json")
    assert pauses == []


def test_metrics_file_is_closed_before_it_is_replaced(tmp_path, monkeypatch):
    path, original, handles = tmp_path / "metrics.jsonl", Path.replace, []

    def replace(draft, target):
        handles.append([each.path for each in psutil.Process().open_files()].count(str(path)))
        return original(draft, target)

    monkeypatch.setattr(Path, "replace", replace)
    with closing(JsonLinesFile(path, 4096)) as file:
        for _ in range(20):
            file.write(RECORD)
    assert handles and not any(handles)


def test_windows_deletes_a_checkpoint_in_use_later(tmp_path, monkeypatch, caplog):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    original, refuses = Path.rename, [True]

    def rename(path, target):
        if path.name.startswith("step-") and refuses[0]:
            raise PermissionError(errno.EACCES, "Access is denied")
        return original(path, target)

    def save(step):
        checkpoints.save(step, lambda folder: (folder / "weights").write_bytes(b"x"), {})

    save(1)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError):
        save(2)
    monkeypatch.setattr(sys, "platform", "win32")
    save(3)
    assert checkpoints.steps() == [1, 2, 3]
    refuses[0] = False
    save(4)
    assert checkpoints.steps() == [4]


@pytest.mark.usefixtures("windows")
def test_windows_console_escapes_unencodable_text(monkeypatch):
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="cp1252") as console, open(ours, "rb"):  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", console)
        monkeypatch.setattr(sys, "stderr", None)
        guard_output()
        assert sys.stdout is console and console.errors == "backslashreplace"
