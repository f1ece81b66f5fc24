"""What the doctor says of a local network that a node looks for members on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.config.config import Config
from node.doctor import network as module
from node.doctor.network import check_network
from node.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[3]
SWARM = "ab" * 32


@contextmanager
def announced(number: int, swarm: str) -> Iterator[None]:
    """So many nodes of a swarm on the loopback network."""
    words = "127.0.0.1", "127.0.0.1", str(number), swarm, "4999"
    command = [sys.executable, "-m", "tests.swarm.lan.announcing", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout and process.stdout.readline() == b"announced\n"
        yield
        assert process.stdin
        process.stdin.close()


def looking(folder: Path, listen: str) -> list[tuple[str, str, str]]:
    config = Config.with_overrides({"network.lan": True, "network.listen": [listen]})
    findings = check_network(config, RunFolder(folder))
    return [(each.level, each.check, each.found) for each in findings if each.check != "ports"]


@pytest.mark.processes
def test_the_doctor_says_who_is_announced_nearby(tmp_path: Path) -> None:
    with announced(3, SWARM):
        (finding,) = looking(tmp_path, "/ip4/127.0.0.1/tcp/0")
    level, check, text = finding
    assert (level, check) == ("ok", "lan")
    assert text.startswith("3 nodes announced") and SWARM[:16] in text


def test_the_doctor_says_that_nobody_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAR_SECONDS", 0.1)
    ((level, check, _),) = looking(tmp_path, "/ip4/127.0.0.1/tcp/0")
    assert (level, check) == ("warn", "lan")
    ((level, check, text),) = looking(tmp_path, "/ip4/203.0.113.77/tcp/0")
    assert (level, check) == ("fail", "lan") and "network.listen" in text
