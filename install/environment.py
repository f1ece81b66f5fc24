"""Make a virtual environment and install swarm-node from this tree into it.

Run by the Makefile with the Python that the environment shall have; needs its standard library
alone. ``uv`` does the installation: it shows sizes and progress, takes the index and the wheels
that pip is configured with, and chooses the build of PyTorch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parent.parent
TORCH_IMPORTS = "torch, torch.distributed.tensor, torch._dynamo"
NODE_IMPORTS = ("node.run.node", "reasoning_gym, hivemind, node.demo.run")
OLDEST, NEWEST = (3, 11), (3, 13)


# This file runs under whatever Python there is, also one too old for swarm-node.
class Build(NamedTuple):
    """One build of PyTorch and what an installation with it takes."""

    name: str
    download: str
    disk: str


CPU = Build("CPU", "360 MB", "1.5 GB")
CUDA = Build("CUDA", "2.9 GB", "5.3 GB")


class InstallError(Exception):
    """The installation cannot go on; the text names the remedy."""


def main() -> None:
    """Install, or end with one line that says what to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the environment; made if it does not exist")
    parser.add_argument("--extras", default="", help="extras of swarm-node, separated by commas")
    parser.add_argument("--only", default="", help="install these and not this tree")
    parser.add_argument("--torch", default="auto", help="auto, cpu, cuda, or a backend of uv")
    asked = parser.parse_args()
    try:
        python = made(asked.folder)
        installer = Installer(python, asked.folder)
        installer.install_torch(asked.torch)
        compiling = start_compiling(python, TORCH_IMPORTS)
        installer.install(asked.only.split() or tree(asked.extras))
        compiling.wait()
        if not asked.only:
            compile_what_nodes_import(python)
    except InstallError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def made(folder: Path) -> Path:
    """Return the Python of an environment with uv in it, which is made if it is not whole.

    Raises:
        InstallError: This Python is not supported or has no ``venv``, or the folder holds
            something else.
    """
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise InstallError(
            f"Python {sys.version.split()[0]} is not supported. "
            "Install Python 3.11, 3.12 or 3.13, and run: make PYTHON=python3.12 ..."
        )
    python = folder / "bin" / "python"
    if python.exists() and works(python, "import uv"):
        return python
    if folder.exists():
        if not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
            raise InstallError(f"not an environment: {folder}. Move it away, and run this again.")
        shutil.rmtree(folder)
    require_venv()
    try:
        run(sys.executable, "-m", "venv", folder)
        quiet = "--quiet", "--disable-pip-version-check"
        run(python, "-m", "pip", *quiet, "install", "uv>=0.9,<1")
    except BaseException:
        # Also after Ctrl-C, other targets would take an environment without uv for a whole one.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return python


def require_venv() -> None:
    """Install Debian's ``venv`` if it is missing and this user may.

    Raises:
        InstallError: It is missing and has to be installed by hand.
    """
    if works(Path(sys.executable), "import ensurepip"):
        return
    package = f"python3.{sys.version_info[1]}-venv"
    install = f"apt-get update && apt-get install --yes --no-install-recommends {package}"
    if shutil.which("apt-get") is None:
        raise InstallError(
            "Python's ensurepip is missing. Install the package that your system has it in."
        )
    if os.geteuid() != 0:
        raise InstallError(f"{package} is missing. Install it with: sudo sh -c '{install}'")
    print(f"{package} is missing, installing it: {install}", flush=True)
    run("sh", "-c", install)


class Installer:
    """Runs uv for one environment."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._command = [python, "-m", "uv", "pip", "install", "--python", python]
        self._python = python
        self._folder = folder
        self._environment = {**pip_sources(python), **os.environ}

    def install_torch(self, asked: str) -> None:
        """Install the build of PyTorch that was asked for, unless there is one already.

        Raises:
            InstallError: It cannot be installed.
        """
        (wanted,) = (line for line in requirements() if line.startswith("torch=="))
        version = wanted.removeprefix("torch==")
        held = f"version('torch').split('+')[0] == {version!r}"
        if works(self._python, f"from importlib.metadata import version; assert {held}"):
            return
        if asked == "auto":
            asked = "cuda" if sys.platform != "linux" or has_nvidia() else "cpu"
        if asked == "cpu" and sys.platform == "linux":
            self._announce(CPU)
            if self.uv(f"torch=={version}+cpu", quiet=True):
                return
            if self.uv(wanted, "--torch-backend", "cpu"):
                return
            print(
                "PyTorch's CPU build cannot be reached; PyPI's build with CUDA takes its place.",
                flush=True,
            )
            asked = "cuda"
        if sys.platform == "linux":
            self._announce(CUDA if asked == "cuda" else Build(asked, "several GB", "several GB"))
        backend = [] if asked in ("cuda", "cpu") else ["--torch-backend", asked]
        if not self.uv(wanted, *backend):
            raise InstallError(
                f"PyTorch cannot be installed: {wanted}. Look at what uv printed above."
            )

    def install(self, wanted: list[str]) -> None:
        """Install what uv is asked for.

        Raises:
            InstallError: Something cannot be installed.
        """
        if not self.uv(*wanted):
            raise InstallError(f"not installed: {' '.join(wanted)}. Look at what uv printed above.")

    def _announce(self, build: Build) -> None:
        print(
            f"Installing into {self._folder}: about {build.download} to download and {build.disk} "
            f"on disk, with PyTorch's {build.name} build. "
            "TORCH=cpu or TORCH=cuda behind make chooses another.",
            flush=True,
        )

    def uv(self, *arguments: str, quiet: bool = False) -> bool:
        """Have uv install something; whether it could."""
        sink = subprocess.DEVNULL if quiet else None
        ended = subprocess.run(
            [*self._command, *arguments], env=self._environment, stdout=sink, stderr=sink
        )
        return ended.returncode == 0


def tree(extras: str) -> list[str]:
    """Return what has uv install this tree with its extras, editable."""
    return ["--editable", f"{TREE}[{extras}]" if extras else str(TREE)]


def requirements() -> list[str]:
    """Return what requirements.txt asks for, a line each."""
    lines = (TREE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pip_sources(python: Path) -> dict[str, str]:
    """Return variables that have uv use the index and the folders that pip is configured with."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        variable = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX"}.get(
            key.rpartition(".")[2]
        )
        if variable is not None:
            found[variable] = ",".join(value.strip("'\"").replace("\\n", " ").split())
    return found


def has_nvidia() -> bool:
    """Return whether this machine has a driver for NVIDIA GPUs."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def compile_what_nodes_import(python: Path) -> None:
    """Write the bytecode of every module that a node imports.

    uv installs none. Without it, the processes of a first swarm would each compile the same
    thousands of modules, and every later one again where Python may not write bytecode.

    Raises:
        InstallError: A node cannot be imported.
    """
    print("Compiling what a node imports", flush=True)
    processes = [start_compiling(python, names, stderr=None) for names in NODE_IMPORTS]
    ended = [process.wait() for process in processes]
    if any(ended):
        raise InstallError("A node cannot be imported. Look at what Python printed above.")


def start_compiling(
    python: Path, names: str, stderr: int | None = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process that imports modules, which writes their bytecode.

    While uv still installs, an import may meet half a package and fail; a later one is complete.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [python, "-W", "ignore", "-c", f"import {names}"]
    return subprocess.Popen(command, cwd=TREE, env=environment, stderr=stderr)


def works(python: Path, code: str) -> bool:
    """Return whether a Python runs a line of code."""
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def run(*command: str | Path) -> None:
    """Run a command whose output is shown.

    Raises:
        InstallError: It failed.
    """
    if subprocess.run(command).returncode != 0:
        raise InstallError(f"failed: {' '.join(map(str, command))}. Its output is above.")


if __name__ == "__main__":
    main()
