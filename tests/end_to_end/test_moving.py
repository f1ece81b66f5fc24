"""A trained node moves to another swarm and back."""

import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.monitor.record import RoundRecord
from protocol.manifest import swarm_id
from tests.end_to_end.commands import Command, join
from tests.end_to_end.conftest import Swarm

pytestmark = pytest.mark.processes

Rounds = Callable[..., Command]
Wanted = Callable[[RoundRecord], bool]


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    """Return a function that runs more rounds until one is as wanted, then stops."""
    with ExitStack() as stack:

        def run(count: int, *arguments: str, wanted: Wanted = lambda record: True) -> Command:
            node = stack.enter_context(join(tmp_path, *arguments))
            before = len(node.records())
            node.until(lambda: any(map(wanted, node.records()[before + count - 1 :])))
            assert node.stop(signal.SIGTERM) == 0
            return node

        yield run


def swarm_of(node: Command) -> str:
    return swarm_id(node.run.manifest.read_bytes()).hex()


def test_run_folder_moves_between_swarms(swarm: Swarm, rounds: Rounds, tmp_path: Path) -> None:
    alone = rounds(3)
    home = swarm_of(alone)
    assert "baseline on " in " ".join(alone.out)
    _, address = swarm.seed()
    for peers, remedy in (((f"--peers={address}",), "name that swarm"), ((), "--peers")):
        with join(tmp_path, "--swarm=" + 8 * "0", *peers) as wrong:
            assert wrong.wait() == 2
            (line,) = [line for line in wrong.err if line.startswith("error: ")]
            assert "--swarm: 00000000" in line and remedy in line
    assert swarm_of(alone) == home
    assert not (tmp_path / "swarm-run" / "swarms").exists()

    beside = rounds(3, f"--peers={address}", wanted=lambda record: record.foreign_peers == 1)
    assert swarm_of(beside) == home
    assert all(record.peers == 0 for record in beside.records())
    output = " ".join(beside.out)
    assert "baseline on" not in output, "a trained node skips the baseline evaluation"
    typed = re.search(r"To move there with this policy: swarm-node join (.*?)\. To start", output)
    assert typed, output

    done = len(beside.records())
    moved = rounds(3, *shlex.split(typed[1]), wanted=lambda record: record.peers == 1)
    assert swarm_of(moved) != home
    assert f"resuming from round {done}" in " ".join(moved.out)
    assert [record.round for record in moved.records()] == list(range(1, len(moved.records()) + 1))
    assert "moved from swarm" in moved.run.log.read_text()

    done = len(moved.records())
    back = rounds(1, f"--swarm={home[:8]}")
    assert swarm_of(back) == home
    assert back.records()[-1].round > done
    assert not (tmp_path / "swarm-run" / "swarms" / "move.json").exists()
