import ctypes
import json
import os
from types import SimpleNamespace

import pytest

from node import threads
from tests.node.programs import python


class Clock:
    """Time passes only where somebody waits."""

    now = 0.0

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    import torch

    clock, before = Clock(), torch.get_num_threads()
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    yield clock
    torch.set_num_threads(before)


def test_a_process_that_chose_its_threads_gives_torch_and_its_children_no_more(monkeypatch):
    code = (
        "from node.threads import choose; choose(1);"
        "import json, os, torch;"
        "print(json.dumps([torch.get_num_threads(), os.environ['OMP_NUM_THREADS']]))"
    )
    for name in threads.LIBRARIES:
        monkeypatch.delenv(name, raising=False)
    assert json.loads(python(code, check=True).stdout) == [1, "1"]
    with pytest.raises(ValueError, match="threads = 0"):
        threads.environment(0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's CPU affinity")
def test_zero_takes_the_cores_that_this_process_may_run_on():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from node.threads import choose; print(choose(0))"
    )
    assert python(code, check=True).stdout.strip() == "1"


def test_threads_that_do_not_pay_are_left_to_others_and_those_that_halve_the_time_taken(clock):
    import torch

    assert threads.fastest(lambda: clock.wait(0.02), 4) == torch.get_num_threads() == 1
    assert threads.fastest(lambda: clock.wait(0.02 / torch.get_num_threads()), 4) == 4


FREED_BELOW = """
import psutil, torch
from node.threads import MemoryTrimmer
rss = lambda: psutil.Process().memory_info().rss >> 20
trim, before = MemoryTrimmer(), rss()
trim()
torch.ones(4 << 20)  # from now on blocks below 16 MiB are on the heap
held = [torch.ones(1 << 18) for _ in range(500)]
above = torch.ones(1 << 14)
del held
freed = rss()
trim()
after = rss()
small = [torch.ones(1 << 18) for _ in range(50)]
del small
print(freed - before, after - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc keeps it")
def test_memory_that_tensors_freed_below_others_goes_back_to_the_system():
    ended = python(FREED_BELOW)
    assert ended.returncode == 0, ended.stderr
    freed, after = map(int, ended.stdout.split())
    assert freed > 450 and after < 100, "MiB more than at first"
