"""Tests marked ``alone`` run in a process of their own: what they load bears nothing beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INNER = "SWARM_NODE_TEST_ALONE"
SECONDS = 600


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("alone"):
        for package in mark.args:
            if find_spec(package) is None:
                pytest.skip(f"{package} is not installed: pip install 'swarm-node[{package}]'")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("alone") is None or INNER in os.environ:
        return None
    name = pyfuncitem.nodeid.partition("::")[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, f"{pyfuncitem.path}::{name}"],
        env={**os.environ, INNER: "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return True
