"""Run folders that others made are only read: nothing is imported from the current folder."""

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
    """A current folder with a module of the program's own name."""
    module = tmp_path / "node" / "cli" / "main.py"
    module.parent.mkdir(parents=True)
    for package in (module.parent, module.parent.parent):
        (package / "__init__.py").touch()
    module.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_node_in_the_background_imports_nothing_from_the_current_folder(here):
    started = start_detached(["--version"], RunFolder(here))
    assert started.exit_code == 0 and "swarm-node" in (here / "node.log").read_text()
    assert not (here / "ran").exists()


def test_a_node_of_a_demo_imports_nothing_from_the_current_folder(here):
    with closing(NodeProcess(["status"], here)) as process:
        assert process.wait(timeout=300) is not None
    assert not (here / "ran").exists()


def test_every_process_of_the_program_ignores_the_current_folder():
    for package in ("node", "swarm", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            for item in ast.walk(parse(path.read_text(encoding="utf-8"))):
                if isinstance(item, ast.List | ast.Tuple):
                    words = [w.value for w in item.elts if isinstance(w, ast.Constant)]
                    assert "-m" not in words or "-P" in words, f"{path}, line {item.lineno}"
