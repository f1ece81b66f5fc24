"""The network stays within its CPU share, and is not paused while it does."""

import asyncio
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.transport.subprocess import child as child_module
from swarm.transport.subprocess.child import LONGEST_PAUSE, SAVED_SECONDS, Allowance, Meter

RATE = 0.1


@given(st.lists(st.tuples(st.floats(0.001, 2.0), st.floats(0.0, 2.0)), max_size=200))
def test_process_that_pauses_stays_within_its_cpu_allowance(turns):
    allowance, now, used = Allowance(RATE, 0.0), 0.0, 0.0
    for seconds, cores in turns:
        now, used = now + seconds, used + seconds * cores
        for _ in range(1000):
            pause = allowance.pause(used, now)
            assert 0.0 <= pause <= LONGEST_PAUSE
            if not pause:
                break
            now += pause
        assert used <= SAVED_SECONDS + RATE * now + 1e-6 or pause


@given(st.lists(st.floats(0.001, 100.0), max_size=50))
def test_process_below_its_rate_never_pauses_and_saves_bounded_time(turns):
    allowance, now, used = Allowance(RATE, 0.0), 0.0, 0.0
    for seconds in turns:
        now, used = now + seconds, used + 0.99 * RATE * seconds
        assert allowance.pause(used, now) == 0.0
    assert allowance.pause(used, now + 1e6) == 0.0
    assert allowance.pause(used + SAVED_SECONDS + 1.0, now + 1e6 + 1.0) > 0.0


BUSY = "while True: pass"


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the throttle stops processes only on Linux")
def test_throttle_limits_a_busy_daemon_to_its_cpu_share(counters, monkeypatch) -> None:
    for name, value in {"SAVED_SECONDS": 0.01, "SHARE": 0.0, "LEAST": 0.01}.items():
        monkeypatch.setattr(child_module, name, value)
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        try:

            async def work() -> None:
                async with asyncio.timeout(4.0):
                    await child_module.throttle_cpu(lambda: busy.pid, counters)

            start = time.monotonic()
            with pytest.raises(TimeoutError):
                asyncio.run(work())
            elapsed = time.monotonic() - start
            process = psutil.Process(busy.pid)
            # The share, plus the CPU time that the daemon gets while this process waits to run.
            assert sum(process.cpu_times()[:2]) < 0.6 * elapsed
            assert counters.snapshot()["network_paused_seconds"] > 0.2 * elapsed
            assert process.status() != psutil.STATUS_STOPPED
        finally:
            busy.kill()


def test_cpu_time_from_a_replaced_daemon_still_counts() -> None:
    idle = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen([sys.executable, "-c", BUSY]) as first, subprocess.Popen(idle) as second:
        try:
            pids = [first.pid]
            meter = Meter(lambda: pids[-1])
            while meter.read() < 1.0:
                time.sleep(0.01)
            before = meter.read()
            first.kill()
            first.wait()
            pids.append(second.pid)
            assert meter.read() >= before
            assert meter.daemon and meter.daemon.pid == second.pid
            assert meter.read() < before + 1.0
        finally:
            first.kill()
            second.kill()
