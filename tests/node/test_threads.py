import ctypes
import json
import os
from types import SimpleNamespace

import pytest

from node import threads
from tests.node.programs import python


class Clock:
    """A clock that advances only by waits."""

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


def test_thread_choice_limits_torch_and_child_processes(monkeypatch):
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
def test_zero_threads_means_all_cores_of_the_affinity_mask():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from node.threads import choose; print(choose(0))"
    )
    assert python(code, check=True).stdout.strip() == "1"


def test_fastest_uses_more_threads_only_if_they_help(clock):
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs malloc_trim")
def test_trimmer_returns_freed_heap_memory_to_the_system():
    result = python(FREED_BELOW)
    assert result.returncode == 0, result.stderr
    freed, after = map(int, result.stdout.split())
    assert freed > 450 and after < 100, "MiB above the start"
