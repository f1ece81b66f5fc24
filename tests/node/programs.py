"""Programs in an interpreter of their own, which find the project wherever they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run ``code``; what it prints is kept unless streams are given."""
    captured = not {"stdout", "stderr"} & options.keys()
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        **{"capture_output": captured, "text": True, "timeout": 300, **options},
    )


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for what other processes or threads do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
