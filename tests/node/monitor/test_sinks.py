import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from textwrap import dedent
from unittest.mock import Mock, call

import pytest

from node.config.registry import LOGGERS
from node.dashboard.rounds import Rounds
from node.demo.node_process import RecordTail
from node.errors import NodeError
from node.monitor.history import read_history
from node.monitor.loggers import figures, run_name
from node.monitor.record import RoundRecord
from node.monitor.sinks import SafeSink
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from tests.end_to_end.commands import ROOT
from tests.node.monitor.test_monitor import RECORD

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
needs_wandb = pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed")
LINES = 3000


def test_failing_sink_is_counted_logged_once_and_retried(caplog):
    class Broken(Mock):
        """Accepts only its third record and fails to close."""

    odd = UnicodeEncodeError("latin-1", "\u2013", 0, 1, "no such character")
    counters, broken = Counters(), Broken()
    broken.write.side_effect, broken.close.side_effect = [odd, odd, None], OSError("gone")
    sink = SafeSink(broken, counters)
    for _ in range(3):
        sink.write(RECORD)
    sink.close()
    assert broken.write.mock_calls == [call(RECORD)] * 3
    assert counters.snapshot() == {"sink_failures{sink=Broken}": 3.0}
    assert [r.getMessage()[:13] for r in caplog.records] == ["Broken failed"]


def run(code, folder, **environment):
    """Run in a separate process, because the packages keep threads and hooks."""
    (folder / "my-run").mkdir(exist_ok=True)
    command = [sys.executable, "-c", dedent(MAKE) + dedent(code)]
    own = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment}
    how = {"capture_output": True, "text": True, "timeout": 600}
    return subprocess.run(command, cwd=folder, env=own, **how)


def test_figure_names_are_shared_and_run_names_are_unique(tmp_path):
    record = RoundRecord(3, 2, 0.0, 0.5, seconds={"update": 1.5}, refused={"expired": 2})
    flat = figures(record)
    names = "reward_local", "seconds_update", "refused/expired"
    assert [flat[name] for name in names] == [0.5, 1.5, 2.0]
    names = {run_name(RunFolder(tmp_path / place / "swarm-run")) for place in "ab"}
    assert len(names) == 2 and all(name.startswith("swarm-run-") for name in names)


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_missing_package_error_shows_the_fix(tmp_path, monkeypatch, name):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NodeError, match=rf"pip install '\.\[{name}\]'"):
        LOGGERS.open(name, {}, RunFolder(tmp_path))


@pytest.mark.skipif(not find_spec("trackio"), reason="trackio is not installed")
def test_trackio_logs_figures_by_round_across_restarts(tmp_path):
    code = """
    log("trackio", {"run": "mine"}, 1, 2)
    log("trackio", {"run": "mine"}, 3)
    from trackio.sqlite_storage import SQLiteStorage
    rows = SQLiteStorage.get_logs("swarm-node", "mine")
    print([(row["step"], row["reward_local"], row["refused/expired"]) for row in rows])
    """
    done = run(code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert done.stdout == "[(1, 0.25, 2.0), (2, 0.5, 2.0), (3, 0.75, 2.0)]\n", done.stderr


@needs_wandb
def test_wandb_stores_only_figures_in_the_run_folder(tmp_path):
    done = run('log("wandb", {"mode": "offline", "run": "mine"}, 1, 2)', tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (stored,) = tmp_path.glob("my-run/wandb/offline-run-*/run-mine.wandb")
    assert b"refused/expired" in stored.read_bytes()
    assert not list(tmp_path.rglob("wandb-metadata.json")), "no file describes the machine"


@needs_wandb
def test_wandb_without_a_login_fails_with_a_fix(tmp_path):
    done = run('log("wandb", {})', tmp_path)
    assert done.returncode == 1
    assert "no wandb login" in done.stderr and "'offline'" in done.stderr


def written_in_halves(path):
    with path.open("ab", buffering=0) as file:
        for number in range(1, LINES + 1):
            line = json.dumps(replace(RECORD, round=number).to_dict()).encode() + b"\n"
            file.write(line[: len(line) // 2])
            file.write(line[len(line) // 2 :])


def followed(path):
    tail = RecordTail(path)
    return lambda: (tail.look() or [RECORD])[-1].round


def drawn(path):
    rounds = Rounds(path)

    def newest():
        rounds.look()
        numbers = rounds.column("round").tolist()
        assert numbers == list(range(1, len(numbers) + 1))
        return len(numbers)

    return newest


def read_whole(path):
    return lambda: len(read_history(path.parent))


@pytest.mark.parametrize("reader", [followed, drawn, read_whole])
def test_reader_reads_a_concurrently_written_line_once(reader, tmp_path):
    path = tmp_path / "metrics.jsonl"
    newest = reader(path)
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        writing = processes.submit(written_in_halves, path)
        while not writing.done():
            newest()
        writing.result()
    assert newest() == LINES
