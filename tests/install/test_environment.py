"""``install/environment.py`` makes an environment that is whole, or none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from install import environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "env"


def fails(*arguments: object) -> bool:
    return False


def test_without_venv_no_half_made_environment_remains(monkeypatch, folder: Path) -> None:
    monkeypatch.setattr(environment, "works", fails)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(environment.InstallError) as error:
        environment.made(folder)
    package = f"python3.{sys.version_info[1]}-venv"
    assert str(error.value).startswith(f"{package} is missing. Install it with: sudo ")
    assert not folder.exists()


def test_an_installation_that_breaks_off_leaves_no_environment(monkeypatch, folder: Path) -> None:
    def broken(*command: object) -> None:
        folder.mkdir()
        (folder / "pyvenv.cfg").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        environment.made(folder)
    assert not folder.exists()


def test_a_half_made_environment_of_an_earlier_try_is_made_again(monkeypatch, folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
    commands: list[tuple[object, ...]] = []
    monkeypatch.setattr(environment, "works", lambda python, code: code == "import ensurepip")
    monkeypatch.setattr(environment, "run", lambda *command: commands.append(command))
    assert environment.made(folder) == folder / "bin" / "python"
    assert commands[0][1:] == ("-m", "venv", folder)
    assert not folder.exists(), "what was there has made place"


def test_a_folder_that_is_something_else_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")
    with pytest.raises(environment.InstallError, match=r"not an environment: .*Move it away"):
        environment.made(folder)
    assert (folder / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 10, 0), (3, 14, 0)])
def test_a_python_that_is_not_supported_is_refused_by_its_version(
    monkeypatch, folder: Path, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(environment.sys, "version_info", version)
    with pytest.raises(environment.InstallError, match=r"is not supported\. Install Python 3\.11"):
        environment.made(folder)
    assert not folder.exists()


def test_uv_takes_the_wheels_and_the_index_that_pip_is_configured_with(
    monkeypatch, tmp_path: Path
) -> None:
    configured = tmp_path / "pip.conf"
    configured.write_text(
        "[global]\nfind-links = /srv/wheels\n    /srv/more\nindex-url = https://example.org/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configured))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    sources = environment.pip_sources(Path(sys.executable))
    assert sources["UV_FIND_LINKS"] == "/srv/wheels,/srv/more"
    assert sources["UV_DEFAULT_INDEX"] == "https://example.org/simple"


def asked_of_uv(monkeypatch, reachable: tuple[str, ...], build: str) -> list[tuple[str, ...]]:
    """What uv is asked for until it installs a build of PyTorch that can be reached."""
    asked: list[tuple[str, ...]] = []

    def uv(self: object, *arguments: str, quiet: bool = False) -> bool:
        asked.append(arguments)
        return arguments in [
            (each,) if " " not in each else tuple(each.split()) for each in reachable
        ]

    monkeypatch.setattr(environment, "works", fails)
    monkeypatch.setattr(environment, "pip_sources", lambda python: {})
    monkeypatch.setattr(environment.Installer, "uv", uv)
    monkeypatch.setattr(environment.sys, "platform", "linux")
    environment.Installer(Path("python"), Path("env")).install_torch(build)
    return asked


def test_the_cpu_build_is_taken_where_there_is_no_gpu(monkeypatch, capsys) -> None:
    monkeypatch.setattr(environment, "has_nvidia", lambda: False)
    (wanted,) = (line for line in environment.requirements() if line.startswith("torch=="))
    asked = asked_of_uv(monkeypatch, (f"{wanted} --torch-backend cpu",), "auto")
    assert asked == [(f"{wanted}+cpu",), (wanted, "--torch-backend", "cpu")]
    assert "360 MB to download and 1.5 GB on disk" in capsys.readouterr().out


def test_a_build_that_cannot_be_reached_is_replaced_with_its_size_named(
    monkeypatch, capsys
) -> None:
    (wanted,) = (line for line in environment.requirements() if line.startswith("torch=="))
    assert asked_of_uv(monkeypatch, (wanted,), "cpu")[-1] == (wanted,)
    said = capsys.readouterr().out
    assert "CPU build cannot be reached" in said and "2.9 GB to download" in said


@pytest.mark.parametrize(("build", "gpu"), [("auto", True), ("cuda", False)])
def test_the_cuda_build_is_taken_where_there_is_a_gpu_or_it_is_asked_for(
    monkeypatch, build: str, gpu: bool
) -> None:
    monkeypatch.setattr(environment, "has_nvidia", lambda: gpu)
    (wanted,) = (line for line in environment.requirements() if line.startswith("torch=="))
    assert asked_of_uv(monkeypatch, (wanted,), build) == [(wanted,)]
