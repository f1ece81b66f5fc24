"""Ctrl-C while a command reads modules, which is most of how it starts, and how a demo ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.run.preflight import prepare
from tests.end_to_end.commands import PATIENCE, ROOT

pytestmark = pytest.mark.processes

READ = b"import time:"
"""Begins what Python says of a module that was read; the name of the module ends the line."""
MOMENTS = (
    ("--help", "typer.core"),
    ("join", "node.cli.peers"),
    ("join", "pydantic"),
    ("join", "numpy"),
    ("join", "torch.nn"),
    ("bootstrap", "node.run.commands"),
    ("doctor", "node.doctor.checks"),
    ("demo --nodes 2 --rounds 1", "matplotlib"),
    ("export --out model", "transformers.utils"),
    ("init node", "cryptography"),
    ("status", "node.monitor.record"),
)
"""A command, and the module after which it is interrupted: one that an import statement reads, as
Python reports no others."""
ENDS = (130, -signal.SIGINT)
"""Python ends by the signal itself where it came within code made of text, as dataclasses are; a
shell tells both as 130."""


def interrupted(command: str, module: str, folder: Path) -> tuple[int, list[str]]:
    """The exit status and the lines of a command that gets a SIGINT once it has read ``module``."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "node.cli.main", *command.split()],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stderr
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            said = list(_until(process.stderr, module))
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate()
        finally:
            watchdog.cancel()
            process.kill()
    lines = [*said, *rest.splitlines()]
    return process.returncode, [line.decode() for line in lines if not line.startswith(READ)]


def _until(lines: Iterator[bytes], module: str) -> Iterator[bytes]:
    for line in lines:
        yield line.rstrip()
        if line.startswith(READ) and line.split()[-1].decode() == module:
            return
    raise AssertionError(f"{module} was never read")


@pytest.mark.parametrize(("command", "module"), MOMENTS)
def test_an_interrupt_at_the_start_ends_a_command_without_a_trace(
    command: str, module: str, tmp_path: Path
) -> None:
    if command.startswith("export"):
        prepare(tmp_path)  # it loads nothing where there is no node
    status, lines = interrupted(command, module, tmp_path)
    assert lines in ([], ["stopping at once (SIGINT)"])
    assert status in ENDS
