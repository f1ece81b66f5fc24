from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from node.concurrency import threads


class Clock:
    """Time passes only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_a_process_that_chose_its_threads_gives_torch_and_its_children_no_more():
    code = (
        "from node.concurrency.threads import choose; choose(1);"
        "import json, os, torch;"
        "print(json.dumps([torch.get_num_threads(), os.environ['OMP_NUM_THREADS']]))"
    )
    clean = {k: v for k, v in os.environ.items() if k not in threads.LIBRARIES}
    output = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, check=True, timeout=300
    ).stdout
    assert json.loads(output) == [1, "1"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's CPU affinity")
def test_zero_takes_the_cores_that_this_process_may_run_on():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from node.concurrency.threads import choose; print(choose(0))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=300
    )
    assert output.stdout.strip() == b"1"


def test_fewer_than_one_thread_is_refused_by_name():
    with pytest.raises(ValueError, match="threads = 0"):
        threads.environment(0)


def test_threads_that_do_not_pay_are_left_to_others(clock):
    import torch

    before = torch.get_num_threads()
    try:
        assert threads.fastest(lambda: clock.wait(0.02), 4) == 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_threads_that_halve_the_time_are_taken(clock):
    import torch

    before = torch.get_num_threads()
    try:
        assert threads.fastest(lambda: clock.wait(0.02 / torch.get_num_threads()), 4) == 4
    finally:
        torch.set_num_threads(before)
