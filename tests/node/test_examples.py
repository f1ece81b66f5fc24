"""The examples work as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from node.config.config import load
from node.storage.run_folder import RunFolder
from node.tasks.catalogue import load_catalogue

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CONFIGS = sorted((EXAMPLES / "nodes").glob("*.toml"))
PAGES = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *EXAMPLES.rglob("*.md")]
DRIVE = EXAMPLES / "drive_from_python.py"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_nodes_config_is_accepted_and_gives_the_node_what_it_says(path: Path) -> None:
    config = load(path)
    for section, keys in tomllib.loads(path.read_text()).items():
        assert keys.items() <= getattr(config, section).model_dump(mode="json").items()


def test_the_catalogue_of_ones_own_task_has_the_plugin_that_the_package_brings() -> None:
    folder = EXAMPLES / "own_task"
    (spec,) = load_catalogue(str(folder / "sorting.toml"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert spec.source == "plugin" and spec.name in project["entry-points"]["swarm_node.tasks"]


def test_driving_from_python_takes_under_forty_lines() -> None:
    assert len(DRIVE.read_text().splitlines()) < 40


@pytest.mark.processes
def test_a_node_driven_from_python_does_its_rounds_and_goes_on_from_a_checkpoint(tmp_path):
    def drive(rounds: int) -> list[str]:
        run = subprocess.run(
            [sys.executable, str(DRIVE), "run", str(rounds)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        return re.findall(r"^round (\d+): own groups scored", run.stdout, re.MULTILINE)

    assert drive(5) == ["1", "2", "3", "4", "5"] and drive(1) == ["6"]
    assert RunFolder(tmp_path / "run").holder() is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_example_is_in_the_index() -> None:
    index = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"({path.name}" in index, path.name
