"""Nodes in the background: start and stop a process, and write a systemd unit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from node.errors import NodeError
from node.monitor.logs import LogTail, error_in
from node.storage.atomic_files import write_new
from node.storage.run_folder import RUNNING, STOPPING, RunFolder, present_status
from swarm.common.child_process import command, own_group, variables
from swarm.common.util import make_private

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Detached:
    """A node that was started in the background; its exit code is as in a shell.

    ``status`` is None if it ended before it ran. ``last_words`` are its error, or else the last
    line.
    """

    pid: int
    status: dict[str, Any] | None
    exit_code: int | None
    last_words: str


def start_detached(arguments: Sequence[str], folder: RunFolder) -> Detached:
    """Start a node command in the background; return once it runs or has ended.

    An interrupt meanwhile also ends the node. Raises NodeError if the log cannot be written.
    """
    with closing(LogTail(make_private(folder.create().log), skip=True)) as tail:
        with folder.log.open("ab") as output:
            process = subprocess.Popen(
                command("node.cli.main", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables(),
                **own_group(lasting=True),
            )
        try:
            status = _once_it_runs(process, folder)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        code = process.returncode
        lines = [*tail.new(), *tail.rest()]
        errors = [error for line in lines if (error := error_in(line))]
        last = next(iter([*errors[-1:], *lines[-1:]]), "")
        exit_code = code if code is None or code >= 0 else 128 - code
        return Detached(process.pid, status, exit_code, last)


def _once_it_runs(process: subprocess.Popen[bytes], folder: RunFolder) -> dict[str, Any] | None:
    while process.poll() is None:
        try:
            status = present_status(folder)
        except NodeError:
            status = {}  # no report yet
        if status.get("pid") == process.pid and status["state"] in (RUNNING, STOPPING):
            return status
        time.sleep(LOOK_SECONDS)
    return None


def stop_node(folder: RunFolder, *, now: bool = False) -> int | None:
    """Stop a folder's node once and wait; return its process id, None without one.

    With ``now``, a second signal interrupts its round. Raises NodeError if it cannot signal.
    """
    pid = folder.holder()
    if pid is None:
        return None
    if pid <= 0:
        remedy = "It has just started: run the command again."
        raise NodeError("cannot find the process that uses", folder.root, remedy)
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        process = None
    if not _is_stopping(folder):
        _tell(pid)
        if now:
            # Two pending signals would count as one.
            _wait(lambda: folder.holder() != pid or _is_stopping(folder))
    if now and folder.holder() == pid:
        _tell(pid)
    _wait(lambda: folder.holder() != pid)
    # It releases the folder before it ends, and the caller may then remove the folder.
    _wait(lambda: process is None or _has_ended(process))
    return pid


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_stopping(folder: RunFolder) -> bool:
    try:
        return bool(present_status(folder)["state"] == STOPPING)
    except NodeError:
        return False  # no report yet


def _tell(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it has just ended
    except PermissionError as error:
        remedy = "Run the command as the user of the node, or as root."
        raise NodeError("may not stop process", pid, remedy) from error


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(LOOK_SECONDS)


STOP_SECONDS = 600  # for a round and its checkpoint; systemd kills what is left after that


def write_unit(config: Path) -> Path:
    """Write a systemd unit beside ``config`` that joins, or raise NodeError."""
    config = config.absolute()
    name = re.sub(r"[^A-Za-z0-9:_.-]+", "-", config.parent.name)
    path = config.parent / f"swarm-node-{name}.service"
    if not str(config).isprintable():
        raise NodeError("a unit cannot name", ascii(str(config)), "Use letters and digits.")
    if path.exists():
        raise NodeError("there is already a unit", path, "Edit it, or remove it first.")
    write_new(path, _unit(config).encode())
    return path


def _unit(config: Path) -> str:
    # Not resolved: a virtual environment's interpreter is a link that leads out of it.
    interpreter = str(Path(sys.executable).absolute())
    arguments = ["-P", "-m", "node.cli.main", "join", "--config", str(config).replace("$", "$$")]
    start = " ".join(map(_quoted, [interpreter, *arguments]))
    folder = _literal(str(config.parent))
    return f"""\
[Unit]
Description=swarm-node in {folder}

[Service]
WorkingDirectory={folder}
{_environment()}ExecStart={start}
Restart=on-failure
RestartSec=30
# A wrong config does not correct itself.
RestartPreventExitStatus=2
# The node ends its round, writes a checkpoint and ends its p2p daemon itself.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={STOP_SECONDS}

[Install]
WantedBy=default.target
"""


def _environment() -> str:
    """Return the line for PYTHONPATH, if this program needs it to be found."""
    value = os.environ.get("PYTHONPATH", "")
    paths = [str(Path(each).absolute()) for each in value.split(os.pathsep) if each]
    return f"Environment={_quoted('PYTHONPATH=' + os.pathsep.join(paths))}\n" if paths else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_literal(escaped)}"'


def _literal(text: str) -> str:
    return text.replace("%", "%%")
