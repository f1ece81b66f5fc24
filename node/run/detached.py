"""A node in the background: a session of its own, and what it prints in its log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from node.errors import NodeError
from node.monitor.log_tail import LogTail
from node.monitor.logs import error_in
from node.monitor.present_status import RUNNING, STOPPING, present_status
from node.storage.run_folder import RunFolder
from swarm.common.util import make_private

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Detached:
    """A node that was started in the background.

    Attributes:
        status: what it said of itself once it ran; ``None`` where it had ended by then.
        exit_code: as a shell has it; ``None`` while it runs.
        last_words: the error that it ended with, or else the last line.
    """

    pid: int
    status: dict[str, Any] | None
    exit_code: int | None
    last_words: str


def start_detached(arguments: Sequence[str], folder: RunFolder) -> Detached:
    """Start a command of this program that runs a node; return once it runs or has ended.

    Whoever is interrupted meanwhile takes the node along.

    Args:
        arguments: behind the program's name.
        folder: that its node works in.

    Raises:
        NodeError: the log cannot be written.
    """
    with closing(LogTail(make_private(folder.create().log), skip=True)) as tail:
        with folder.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "node.cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            status = _once_it_runs(process, folder)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        code = process.returncode
        return Detached(
            process.pid,
            status,
            code if code is None or code >= 0 else 128 - code,
            _last_words([*tail.new(), *tail.rest()]),
        )


def _once_it_runs(process: subprocess.Popen[bytes], folder: RunFolder) -> dict[str, Any] | None:
    while process.poll() is None:
        try:
            status = present_status(folder)
        except NodeError:
            status = {}  # nothing has been said yet
        if status.get("pid") == process.pid and status["state"] in (RUNNING, STOPPING):
            return status
        time.sleep(LOOK_SECONDS)
    return None


def _last_words(lines: Sequence[str]) -> str:
    errors = [error for line in lines if (error := error_in(line))]
    return next(iter([*errors[-1:], *lines[-1:]]), "")
