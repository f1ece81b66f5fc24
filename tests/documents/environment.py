"""An environment for the walk, in which pages may install what they like.

``python -m tests.documents.environment FOLDER`` makes one: all that the environment of the tests
has can be imported in it, and whatever is installed there stays there.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.documents.page import ROOT

TREE = (
    *("pyproject.toml", "requirements.txt", "setup.py", "README.md", "LICENSE"),
    *("protocol", "swarm", "node", "experiments", "install", "docs", "examples"),
)
"""What readers type something about."""

PASSED_ON = ("PIP_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy", "TMPDIR")
"""How this machine reaches packages, and where it keeps temporary files."""


def copy_tree(folder: Path, beside: tuple[str, ...] = ()) -> None:
    """Copy the source tree as a reader has it, and what is named ``beside``."""
    for name in (*TREE, *beside):
        if (ROOT / name).is_dir():
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=without)
        else:
            shutil.copy2(ROOT / name, folder / name)


def make(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # Python 3.11 gives an environment a setuptools too old for pyproject.toml, which would hide the
    # one of the tests.
    pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "uninstall", "--yes", "setuptools"]
    subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    see_packages(folder)


def see_packages(folder: Path) -> None:
    """Let an environment import what the one that runs this can."""
    (site,) = folder.glob("lib/python3*/site-packages")
    # A line with a folder, unlike site.addsitedir, leaves that folder's own .pth files alone: an
    # editable install of another tree among them.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")


def variables(home: Path, folder: Path) -> dict[str, str]:
    """What a shell of the walk begins with: nothing of the shell that started the tests."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    if importlib.util.find_spec("setuptools"):
        # It builds with what there is, and asks no package index. pip reads this variable the
        # other way round: 0 is --no-build-isolation.
        kept["PIP_NO_BUILD_ISOLATION"] = "0"
    kept["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    outer = Path(sys.executable).parent
    path = [folder / "first", folder / "env" / "bin", outer, *os.defpath.split(os.pathsep)]
    return kept | {
        "HOME": str(home),
        "PATH": os.pathsep.join(map(str, path)),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }


def build(folder: Path) -> dict[str, str]:
    """The walk's environment with this tree's program in it; what its shells begin with."""
    for name in ("first", "home", "tree"):
        (folder / name).mkdir()
    make(folder / "env")
    copy_tree(folder / "tree")
    python = folder / "first" / "python3"
    # An environment that a page makes sees the packages of the tests as well, where a reader's
    # would fetch them all.
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exec "{folder}/env/bin/python" "$@"\n'
        f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.documents.environment "$3"\n'
    )
    python.chmod(0o755)
    shell = variables(folder / "home", folder)
    command = ["pip", "install", "--quiet", "--no-deps", folder / "tree"]
    subprocess.run([folder / "env" / "bin" / "python", "-m", *command], env=shell, check=True)
    return shell


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
