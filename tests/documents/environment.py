"""Virtual environment for the walk, in which pages may install packages.

``python -m tests.documents.environment FOLDER`` creates one. It can import all packages of the
test environment; packages that a page installs stay in it.
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
"""Files and folders that the documents' commands use."""

PASSED_ON = ("PIP_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy", "TMPDIR")
"""Prefixes of variables for package access and temporary files."""


def copy_tree(folder: Path, beside: tuple[str, ...] = ()) -> None:
    """Copy the source tree as a reader has it, plus the paths in ``beside``."""
    for name in (*TREE, *beside):
        if (ROOT / name).is_dir():
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=without)
        else:
            shutil.copy2(ROOT / name, folder / name)


def make(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # Python 3.11 adds a setuptools that is too old for pyproject.toml and would hide the one of
    # the test environment.
    pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "uninstall", "--yes", "setuptools"]
    subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    see_packages(folder)


def see_packages(folder: Path) -> None:
    """Let an environment import the packages of the running one."""
    (site,) = folder.glob("lib/python3*/site-packages")
    # Unlike site.addsitedir, a line with a folder does not process the folder's .pth files, such
    # as an editable install of another tree.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")


def variables(home: Path, folder: Path) -> dict[str, str]:
    """Return the environment of the walk's shells, without that of the calling shell."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    if importlib.util.find_spec("setuptools"):
        # Build with the installed packages, without a package index. pip inverts this variable:
        # 0 means --no-build-isolation.
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
    """Build the walk's environment with this program; return its shell variables."""
    for name in ("first", "home", "tree"):
        (folder / name).mkdir()
    make(folder / "env")
    copy_tree(folder / "tree")
    python = folder / "first" / "python3"
    # An environment that a page creates also sees the test packages; a reader would download
    # them.
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
