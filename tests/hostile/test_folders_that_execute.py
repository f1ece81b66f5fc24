"""Run folders of others are only read: nothing in the current folder is imported."""

import ast
from contextlib import closing
from pathlib import Path

import pytest

from node.demo.node_process import NodeProcess
from node.run.background import start_detached
from node.storage.run_folder import RunFolder
from tests.documents.page import ROOT
from tests.parsing import parse


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a module named like the program's own."""
    module = tmp_path / "node" / "cli" / "main.py"
    module.parent.mkdir(parents=True)
    for package in (module.parent, module.parent.parent):
        (package / "__init__.py").touch()
    module.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_background_node_does_not_import_from_current_folder(here):
    started = start_detached(["--version"], RunFolder(here))
    assert started.exit_code == 0 and "swarm-node" in (here / "node.log").read_text()
    assert not (here / "ran").exists()


def test_demo_node_does_not_import_from_current_folder(here):
    with closing(NodeProcess(["status"], here)) as process:
        assert process.wait(timeout=300) is not None
    assert not (here / "ran").exists()


def test_every_python_m_command_ignores_current_folder():
    for package in ("node", "swarm", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            for item in ast.walk(parse(path.read_text(encoding="utf-8"))):
                if isinstance(item, ast.List | ast.Tuple):
                    words = [w.value for w in item.elts if isinstance(w, ast.Constant)]
                    assert "-m" not in words or "-P" in words, f"{path}, line {item.lineno}"
