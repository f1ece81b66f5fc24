"""Wheel and source distribution of a copy of this tree, and the installed wheel."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents.environment import copy_tree, see_packages, variables
from tests.documents.page import PAGES, ROOT

pytestmark = pytest.mark.dist

PACKAGES = ("node", "protocol", "swarm")
BESIDE = (
    *("MANIFEST.in", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("Makefile", "mkdocs.yml", "benchmarks", "changes", "tests"),
)
"""Files of the source distribution that the documents' commands do not need."""

Program = Callable[..., str]


def build(tree: Path, *kinds: str | Path) -> Path:
    """Build distributions with the installed packages; return their folder."""
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, tree]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return tree / "dist"


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("source")
    copy_tree(tree, BESIDE)
    build(tree)
    return tree


@pytest.fixture(scope="session")
def wheel(tree: Path) -> Path:
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def unpacked(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    (packed,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with this one's packages and the program's wheel."""
    environment = tmp_path_factory.mktemp("environment") / "env"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    see_packages(environment)
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    return environment


@pytest.fixture
def program(environment: Path, tmp_path: Path) -> Program:
    folder = tmp_path / "empty"
    folder.mkdir()
    shell = variables(tmp_path, environment.parent)

    def run(name: str, *arguments: str) -> str:
        command = [environment / "bin" / name, *arguments]
        ended = subprocess.run(command, cwd=folder, env=shell, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_wheel_contains_only_package_files_and_license(wheel: Path) -> None:
    packed = contents(wheel)
    for package in PACKAGES:
        assert {name for name in packed if name.startswith(f"{package}/")} == files(ROOT / package)
    (licence,) = (name for name in packed if name.endswith("dist-info/licenses/LICENSE"))
    assert packed[licence] == (ROOT / "LICENSE").read_bytes()
    beside = {name.partition("/")[0] for name in packed} - {*PACKAGES}
    assert beside == {licence.partition("/")[0]}


def test_sdist_builds_same_wheel_except_stand_in_metadata(wheel, tree, tmp_path):
    build(tree, "--wheel", "--outdir", tmp_path)
    (direct,) = tmp_path.glob("*.whl")
    assert direct.name == wheel.name
    of_tree, released = contents(direct), contents(wheel)
    (information,) = {name.partition("/")[0] for name in released if ".dist-info/" in name}
    del of_tree[f"{information}/RECORD"], released[f"{information}/RECORD"]
    texts = [each.pop(f"{information}/METADATA").decode() for each in (of_tree, released)]
    lines, fewer = (set(text.splitlines()) for text in texts)
    assert of_tree == released
    assert fewer <= lines
    stand_ins = {f"Requires-Dist: {name}" for name in ("fastecdsa", "pycosat")}
    assert {line.partition(" @ file://")[0] for line in lines - fewer} == stand_ins
    assert not any(" @ " in line for line in fewer if line.startswith("Requires-Dist: "))


def test_sdist_contains_all_files_used_by_tests(unpacked: Path) -> None:
    for folder in ("tests", "docs", "examples", "benchmarks"):
        assert files(ROOT / folder) == files(unpacked / folder)
    assert [page for page in PAGES if not (unpacked / page.relative_to(ROOT)).is_file()] == []


def test_program_imports_only_from_the_wheel(program: Program, environment: Path) -> None:
    for package in PACKAGES:
        origin = program("python", "-c", f"import {package}; print({package}.__file__)")
        assert environment in Path(origin.strip()).parents


def test_program_prints_version_and_demo_help(program: Program) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert program("swarm-node", "--version").splitlines()[0].split() == ["swarm-node", version]
    assert "swarm-node demo --nodes 4" in program("swarm-node", "demo", "--help")


def test_installed_wheel_creates_and_trains_a_node(program: Program, tmp_path: Path) -> None:
    assert "next: swarm-node join" in program("swarm-node", "init", "alone")
    program("swarm-node", "join", "--config", "alone/node.toml", "--rounds", "2")
    records = (tmp_path / "empty" / "alone" / "metrics.jsonl").read_text().splitlines()
    assert len(records) == 2
