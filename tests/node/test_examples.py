import re
import subprocess
import tomllib

import pytest

from node.config.config import load
from node.storage.run_folder import RunFolder
from tests.documents.page import PAGES, name
from tests.node.programs import ROOT, program

EXAMPLES = ROOT / "examples"
CONFIGS = sorted((EXAMPLES / "nodes").glob("*.toml"))
DRIVE = EXAMPLES / "drive_from_python.py"
SHORT = ("own_environment/treasure.py", "own_loss/nearest.py", "own_selection/undecided.py")
SHORT += ("own_task/sorting_task.py", DRIVE.name)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_example_config_loads_with_its_values(path):
    config = load(path)
    for section, keys in tomllib.loads(path.read_text()).items():
        assert keys.items() <= getattr(config, section).model_dump(mode="json").items()


@pytest.mark.parametrize("path", SHORT)
def test_example_has_fewer_than_40_lines(path):
    assert len((EXAMPLES / path).read_text().splitlines()) < 40


@pytest.mark.processes
def test_python_driven_node_trains_and_resumes(tmp_path):
    def drive(rounds: int) -> list[str]:
        options = {"env": {"OMP_NUM_THREADS": "1"}, "stdin": subprocess.DEVNULL, "timeout": 600}
        run = program(str(DRIVE), "run", str(rounds), cwd=tmp_path, **options)
        assert run.returncode == 0, run.stderr
        return re.findall(r"^round (\d+): own groups scored", run.stdout, re.MULTILINE)

    assert drive(5) == ["1", "2", "3", "4", "5"] and drive(1) == ["6"]
    assert RunFolder(tmp_path / "run").holder() is None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_page_link_has_a_target(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_example_is_in_the_index():
    index = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"({path.name}" in index, path.name
