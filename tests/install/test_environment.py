"""``install/environment.py`` creates a complete environment or none."""

import os
import sys
from pathlib import Path

import pytest

from install import environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "env"


def test_missing_venv_leaves_no_partial_environment(monkeypatch, folder: Path) -> None:
    monkeypatch.setattr(environment, "works", lambda *arguments: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(environment.InstallError) as error:
        environment.made(folder)
    package = f"python3.{sys.version_info[1]}-venv"
    assert str(error.value).startswith(f"{package} is missing. Install it with: sudo ")
    assert not folder.exists()


def test_interrupted_install_leaves_no_environment(monkeypatch, folder: Path) -> None:
    def broken(*command: object) -> None:
        folder.mkdir()
        (folder / "pyvenv.cfg").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        environment.made(folder)
    assert not folder.exists()


def test_installer_recreates_a_partial_environment(monkeypatch, folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
    commands: list[tuple[object, ...]] = []
    monkeypatch.setattr(environment, "works", lambda python, code: code == "import ensurepip")
    monkeypatch.setattr(environment, "run", lambda *command: commands.append(command))
    assert environment.made(folder) == folder / "bin" / "python"
    assert commands[0][1:] == ("-m", "venv", folder)
    assert not folder.exists(), "the partial environment is removed"


def test_installer_refuses_an_unrelated_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")
    with pytest.raises(environment.InstallError, match=r"not an environment: .*Move it away"):
        environment.made(folder)
    assert (folder / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 10, 0), (3, 14, 0)])
def test_installer_rejects_unsupported_python_versions(monkeypatch, folder, version):
    monkeypatch.setattr(environment.sys, "version_info", version)
    with pytest.raises(environment.InstallError, match=r"is not supported\. Install Python 3\.11"):
        environment.made(folder)
    assert not folder.exists()


def test_uv_uses_the_wheels_and_index_configured_for_pip(monkeypatch, tmp_path):
    configured = tmp_path / "pip.conf"
    configured.write_text(
        "[global]\nfind-links = /srv/wheels\n    /srv/more\nindex-url = https://example.org/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configured))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    sources = environment.pip_sources(Path(sys.executable))
    assert sources["UV_FIND_LINKS"] == "/srv/wheels,/srv/more"
    assert sources["UV_DEFAULT_INDEX"] == "https://example.org/simple"


(TORCH,) = (line for line in environment.requirements() if line.startswith("torch=="))
CPU = (TORCH, "--torch-backend", "cpu")
TEXTS = {
    "auto": ("360 MB to download and 1.5 GB on disk",),
    "cpu": ("CPU build cannot be reached", "2.9 GB to download"),
}


@pytest.mark.parametrize(
    ("build", "gpu", "reachable", "asked"),
    [
        ("auto", False, CPU, [(f"{TORCH}+cpu",), CPU]),
        ("cpu", False, (TORCH,), [(f"{TORCH}+cpu",), CPU, (TORCH,)]),
        ("auto", True, (TORCH,), [(TORCH,)]),
        ("cuda", False, (TORCH,), [(TORCH,)]),
    ],
)
def test_installer_selects_cuda_for_gpu_request_or_fallback(
    monkeypatch, capsys, build, gpu, reachable, asked
):
    tried: list[tuple[str, ...]] = []

    def uv(self: object, *arguments: str, quiet: bool = False) -> bool:
        tried.append(arguments)
        return arguments == reachable

    monkeypatch.setattr(environment, "has_nvidia", lambda: gpu)
    monkeypatch.setattr(environment, "works", lambda *arguments: False)
    monkeypatch.setattr(environment, "pip_sources", lambda python: {})
    monkeypatch.setattr(environment.Installer, "uv", uv)
    monkeypatch.setattr(environment.sys, "platform", "linux")
    environment.Installer(Path("python"), Path("env")).install_torch(build)
    assert tried == asked
    output = capsys.readouterr().out
    assert all(words in output for words in (() if TORCH in asked[0] else TEXTS[build]))
