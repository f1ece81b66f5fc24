"""The demo, as people start it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.commands import QUICK, Command

pytestmark = pytest.mark.processes


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Command]:
    """One that goes on, with a pipe for a terminal."""
    with Command(tmp_path, "demo", "--rounds=0", "--nodes=2", "--run-dir", "demo") as command:
        yield command


def test_it_goes_on_until_ctrl_c_and_there_is_time_to_join(demo: Command, tmp_path: Path) -> None:
    told = demo.until(lambda: [line for line in demo.out if "swarm-node join" in line])
    address = re.fullmatch(r"  swarm-node join --peers (/ip4/127.0.0.1/tcp/\d+/p2p/\w+)", told[0])
    assert address, told
    assert demo.out[0] == "a swarm of 2 and a bootstrap node in demo, until Ctrl-C"
    with Command(tmp_path, "join", "--peers", address[1], *QUICK) as guest:
        guest.until(lambda: any(record.groups_external for record in guest.records()))
        demo.until(lambda: len([line for line in demo.out if "2 of 2 at work" in line]) >= 2)
    nodes = psutil.Process(demo.process.pid).children(recursive=True)
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait() == 0, demo.err
    assert psutil.wait_procs(nodes, timeout=120)[1] == []
    assert "stopping" in demo.out
    assert demo.out[-1] == "the chart is demo/reward.png"
    assert (tmp_path / "demo" / "reward.png").read_bytes().startswith(b"\x89PNG")
