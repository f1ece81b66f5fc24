"""Loggers of packages that keep runs of many programs, in the real packages where they are here."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from node.config.registry import LOGGERS
from node.errors import NodeError
from node.monitor.loggers import figures, run_name
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder
from tests.end_to_end.commands import ROOT

MAKE = """
import sys
from pathlib import Path
from node.config.registry import LOGGERS
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder

def log(name, options, *rounds):
    logger = LOGGERS.open(name, options, RunFolder(Path("my-run")))
    for number in rounds:
        record = RoundRecord(number, number, 0.0, number / 4, refused={"expired": 2})
        logger.write(record)
    logger.close()
    logger.close()
"""


def run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: these packages keep threads, hooks and services."""
    (folder / "my-run").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", dedent(MAKE) + dedent(code)],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_logger_gives_a_figure_the_same_name() -> None:
    record = RoundRecord(3, 2, 0.0, 0.5, seconds={"update": 1.5}, refused={"expired": 2})
    told = figures(record)
    assert (told["reward_own"], told["seconds_update"], told["refused/expired"]) == (0.5, 1.5, 2.0)


def test_two_run_folders_of_one_name_are_two_runs(tmp_path: Path) -> None:
    names = {run_name(RunFolder(tmp_path / place / "swarm-run")) for place in "ab"}
    assert len(names) == 2 and all(name.startswith("swarm-run-") for name in names)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_missing_package_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NodeError, match=rf"pip install 'swarm-node\[{name}\]'"):
        LOGGERS.open(name, {}, RunFolder(tmp_path))


@pytest.mark.skipif(not find_spec("trackio"), reason="trackio is not installed")
def test_trackio_holds_the_figures_by_round_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    code = """
    log("trackio", {"run": "mine"}, 1, 2)
    log("trackio", {"run": "mine"}, 3)
    from trackio.sqlite_storage import SQLiteStorage
    rows = SQLiteStorage.get_logs("swarm-node", "mine")
    print([(row["step"], row["reward_own"], row["refused/expired"]) for row in rows])
    """
    done = run(code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert done.stdout == "[(1, 0.25, 2.0), (2, 0.5, 2.0), (3, 0.75, 2.0)]\n", done.stderr


@pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed")
def test_wandb_keeps_the_figures_in_the_run_folder_and_nothing_else(tmp_path: Path) -> None:
    code = 'log("wandb", {"mode": "offline", "run": "mine"}, 1, 2)'
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (kept,) = tmp_path.glob("my-run/wandb/offline-run-*/run-mine.wandb")
    assert b"refused/expired" in kept.read_bytes()
    assert not list(tmp_path.rglob("wandb-metadata.json")), "nothing tells what the machine is"


@pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed")
def test_wandb_without_a_login_asks_nobody_and_names_the_way_out(tmp_path: Path) -> None:
    done = run('log("wandb", {})', tmp_path)
    assert done.returncode == 1
    assert "nobody is logged in to wandb" in done.stderr and "'offline'" in done.stderr
