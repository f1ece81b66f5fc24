"""Run Python programs in a new interpreter that can import the project."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import psutil

ROOT = Path(__file__).parents[2]
FORK_SERVER = "node.tasks.verifier.fork_server"


def python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return program("-c", code, *arguments, **options)


def program(*arguments: str, env: Mapping[str, str] = MappingProxyType({}), **options: object):
    """Run Python; capture its output unless streams are given."""
    captured = not {"stdout", "stderr"} & options.keys()
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        **{"capture_output": captured, "text": True, "timeout": 300, **options},
    )


def workers() -> list[psutil.Process]:
    """Return verifier workers: children of fork servers, or direct children."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            command = child.cmdline()
            found += (
                child.children()
                if FORK_SERVER in command
                else [child] * any(x.endswith("worker") for x in command)
            )
    return [x for x in found if not ended(x)]


def newest_worker() -> psutil.Process:
    return max(workers(), key=psutil.Process.create_time)


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {seconds:.0f} s"
        time.sleep(0.01)
