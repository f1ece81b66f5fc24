"""A node whose learner is divided over two processes."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from commands import GRACE_SECONDS, QUICK, Command

from node.storage.checkpoints import Checkpoints

pytestmark = pytest.mark.processes

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = "--set=schedule.checkpoint_every=1"


def rank(command: Command, number: int) -> psutil.Process:
    (found,) = (
        child
        for child in psutil.Process(command.process.pid).children()
        if child.environ().get("RANK") == str(number)
    )
    return found


def first_update(command: Command) -> int | None:
    """The round that updated the policy first."""
    return next((each.round for each in command.records() if each.policy_step), None)


def test_a_node_over_two_ranks_stops_with_a_rank_and_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    with closing(Command(tmp_path, "join", *QUICK, OFTEN, under=TORCHRUN)) as first:
        saved = Checkpoints(first.run.checkpoints)
        trained = first.until(lambda: first_update(first))
        first.until(lambda: max(saved.steps(), default=0) >= trained)
        started = psutil.Process(first.process.pid).children(recursive=True)
        rank(first, 1).send_signal(signal.SIGKILL)
        assert first.wait() == 1
        assert not psutil.wait_procs(started, timeout=GRACE_SECONDS)[1]
        (said,) = (line for line in first.err if line.startswith("error: "))
        assert "another rank has ended" in said and "last checkpoint is whole" in said
        done = saved.steps()[-1]

    rounds = f"--rounds={done + 1}"
    with closing(Command(tmp_path, "join", *QUICK, OFTEN, rounds, under=TORCHRUN)) as second:
        assert second.wait() == 0, second.err
        assert sum("rounds are done" in line for line in second.out) == 1, "rank 1 says nothing"
        assert second.records()[-1].round == done + 1
    loaded = saved.load_latest()
    assert loaded is not None and loaded.state["round"] == done + 1
    assert loaded.state["policy_step"] > 0, "both ranks have learned, and the second run kept it"
