"""Commands in a terminal: Ctrl-C during start and work, and the live panel."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from node.cli.options import LOADING
from node.run.preflight import prepare
from tests.end_to_end.commands import PATIENCE, QUICK, ROOT, Command
from tests.node.monitor.job_control import TerminalJob

pytestmark = pytest.mark.processes

READ = b"import time:"
"""Prefix of Python's line about an imported module; the module's name ends it."""
MOMENTS = (
    ("--help", "typer.core"),
    ("join", "node.cli.peers"),
    ("join", "pydantic"),
    ("join", "numpy"),
    ("join", "torch.nn"),
    ("bootstrap", "node.run.untrained"),
    ("doctor", "node.doctor.checks"),
    ("demo --nodes 2 --rounds 1", "matplotlib"),
    ("export --out model", "transformers.utils"),
    ("init node", "cryptography"),
    ("status", "node.monitor.record"),
)
"""Commands, and the module after whose import each is interrupted.
Only import statements load these modules, because Python reports no others."""
ENDS = (130, -signal.SIGINT)
"""Exit statuses; a shell reports both as 130. Python ends by the signal itself
if it arrives in code compiled from text, such as a dataclass."""


def interrupted(command: str, module: str, folder: Path) -> tuple[int, list[str]]:
    """Send SIGINT after the import of ``module``; return exit status and output lines."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "node.cli.main", *command.split()],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stderr
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            output = list(_until(process.stderr, module))
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate()
        finally:
            watchdog.cancel()
            process.kill()
    lines = [*output, *rest.splitlines()]
    return process.returncode, [line.decode() for line in lines if not line.startswith(READ)]


def _until(lines: Iterator[bytes], module: str) -> Iterator[bytes]:
    for line in lines:
        yield line.rstrip()
        if line.startswith(READ) and line.split()[-1].decode() == module:
            return
    raise AssertionError(f"{module} was never read")


@pytest.mark.parametrize(("command", "module"), MOMENTS)
def test_interrupted_command_exits_without_a_traceback(command, module, tmp_path):
    if command.startswith("export"):
        folder, _ = prepare(tmp_path)  # Export loads nothing without a checkpoint.
        (folder.checkpoints / "step-00000001").mkdir(parents=True)
    status, lines = interrupted(command, module, tmp_path)
    lines = [line for line in lines if line != LOADING]  # printed only if loading is slow
    assert lines in ([], ["stopping now (SIGINT)"])
    assert status in ENDS


DEMO = ("demo", "--rounds=0", "--nodes=2", "--run-dir", "demo")


def test_demo_accepts_peers_and_runs_until_ctrl_c(tmp_path: Path) -> None:
    with Command(tmp_path, *DEMO) as demo:
        matches = demo.until(lambda: [line for line in demo.out if "swarm-node join" in line])
        pattern = r"  swarm-node join --peers (/ip4/127.0.0.1/tcp/\d+/p2p/\w+)"
        address = re.fullmatch(pattern, matches[0])
        assert address, matches
        assert demo.out[0] == "a swarm of 2 and a bootstrap node in demo, until Ctrl-C"
        with Command(tmp_path, "join", "--peers", address[1], *QUICK) as joiner:
            joiner.until(lambda: any(record.groups_external for record in joiner.records()))
            demo.until(lambda: len([line for line in demo.out if "2 of 2 running" in line]) >= 2)
        nodes = psutil.Process(demo.process.pid).children(recursive=True)
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait() == 0, demo.err
        assert psutil.wait_procs(nodes, timeout=120)[1] == []
        assert "stopping" in demo.out
        assert demo.out[-1] == "wrote the chart to demo/reward.png"
        assert (tmp_path / "demo" / "reward.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_panel_restores_the_terminal(tmp_path: Path, number: signal.Signals) -> None:
    join = ("-m", "node.cli.main", "join", *QUICK, "--rounds", "100000")
    with TerminalJob(*join, folder=tmp_path) as node:
        node.until("write that into the config and train with it? [Y/n]")
        node.press(b"n\n")
        node.until(" left, policy step ")
        node.press(b"\x1a")
        assert node.order("wait") == "stopped"
        assert node.modes() == node.before
        node.order("front")
        os.killpg(node.pid, signal.SIGCONT)
        node.until("policy step ")
        if number is signal.SIGINT:
            node.press(b"\x03")
        else:
            os.kill(node.pid, number)
        assert node.order("wait") == "exited 0"
        assert node.modes() == node.before
    file = tmp_path / "swarm-run" / "groups.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rounds = [json.loads(line)["round"] for line in file.read_text().splitlines()]
    metrics = (tmp_path / "swarm-run" / "metrics.jsonl").read_text().splitlines()
    assert rounds[-1] == json.loads(metrics[-1])["round"]


def test_a_bootstrap_node_and_an_observer_run_without_torch(tmp_path: Path) -> None:
    listen = '--set=network.listen=["/ip4/127.0.0.1/tcp/0"]'
    with Command(tmp_path, "bootstrap", listen) as seed:
        seed.until(lambda: seed.run.status.exists() and read_status(seed)["addresses"])
        address = read_status(seed)["addresses"][0]
        with Command(tmp_path, "observe", "--peers", address, listen) as watch:
            watch.until(lambda: any("the swarm's page" in line for line in watch.out))
            for command in (seed, watch):
                loaded = psutil.Process(command.process.pid).memory_maps()
                assert not [each.path for each in loaded if "libtorch" in each.path]


def read_status(command: Command) -> dict[str, Any]:
    return json.loads(command.run.status.read_text())
