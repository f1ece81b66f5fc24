"""Programs in an interpreter of their own, which find the project wherever they run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

ROOT = Path(__file__).parents[2]
WORKER = "node.tasks.verifier.worker"


def python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return program("-c", code, *arguments, **options)


def program(*arguments: str, env: Mapping[str, str] = MappingProxyType({}), **options: object):
    """Run Python; what it prints is kept unless streams are given."""
    captured = not {"stdout", "stderr"} & options.keys()
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        **{"capture_output": captured, "text": True, "timeout": 300, **options},
    )


def newest_worker() -> psutil.Process:
    """Return the verifier's worker that this process started last."""
    running = [x for x in psutil.Process().children() if x.status() != psutil.STATUS_ZOMBIE]
    return max((x for x in running if WORKER in x.cmdline()), key=psutil.Process.create_time)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
