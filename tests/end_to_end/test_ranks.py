"""A node whose learner is divided over two processes."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from node.storage.checkpoints import Checkpoints
from tests.end_to_end.commands import GRACE_SECONDS, QUICK, Command

pytestmark = pytest.mark.processes

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = "--set=schedule.checkpoint_every=1"


def rank(command: Command, number: int) -> psutil.Process:
    children = psutil.Process(command.process.pid).children()
    (found,) = (child for child in children if child.environ().get("RANK") == str(number))
    return found


def test_a_node_over_two_ranks_stops_with_a_rank_and_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    with Command(tmp_path, "join", *QUICK, OFTEN, under=TORCHRUN) as first:
        saved = Checkpoints(first.run.checkpoints)
        trained = first.until(lambda: [r.round for r in first.records() if r.policy_step])[0]
        first.until(lambda: max(saved.steps(), default=0) >= trained)
        started = psutil.Process(first.process.pid).children(recursive=True)
        rank(first, 1).send_signal(signal.SIGKILL)
        assert first.wait() == 1
        assert not psutil.wait_procs(started, timeout=GRACE_SECONDS)[1]
        (said,) = (line for line in first.err if line.startswith("error: "))
        assert "another rank has ended" in said and "last checkpoint is whole" in said
        done = saved.steps()[-1]

    rounds = f"--rounds={done + 1}"
    with Command(tmp_path, "join", *QUICK, OFTEN, rounds, under=TORCHRUN) as second:
        assert second.wait() == 0, second.err
        assert sum("rounds are done" in line for line in second.out) == 1, "rank 1 says nothing"
        assert second.records()[-1].round == done + 1
    loaded = saved.load_latest()
    assert loaded is not None and loaded.state["round"] == done + 1
    assert loaded.state["policy_step"] > 0, "both ranks have learned, and the second run kept it"
