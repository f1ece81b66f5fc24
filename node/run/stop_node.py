"""Ending a node that runs, in order or at once, from another process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil

from node.errors import NodeError
from node.monitor.present_status import STOPPING, present_status
from node.storage.run_folder import RunFolder

LOOK_SECONDS = 0.1


def stop_node(folder: RunFolder, *, now: bool = False) -> int | None:
    """Tell the node in a run folder to stop, once however often this is called, and wait for it.

    Args:
        now: do not let it end its round: tell it a second time.

    Returns:
        The process that has ended; ``None`` where none was there.

    Raises:
        NodeError: it cannot be told.
    """
    pid = folder.holder()
    if pid is None:
        return None
    if pid <= 0:
        raise NodeError(
            "cannot tell which process works in", folder.root, "It has just begun: ask again."
        )
    process = _process(pid)
    if not _is_stopping(folder):
        _tell(pid)
        if now:
            # Two signals that are both on their way are one.
            _wait(lambda: folder.holder() != pid or _is_stopping(folder))
    if now and folder.holder() == pid:
        _tell(pid)
    _wait(lambda: folder.holder() != pid)
    # It lets go of the folder before it has ended, and whoever waits may go on to remove it.
    _wait(lambda: process is None or _has_ended(process))
    return pid


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_stopping(folder: RunFolder) -> bool:
    try:
        return bool(present_status(folder)["state"] == STOPPING)
    except NodeError:
        return False  # nothing has been said yet


def _tell(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it has just ended
    except PermissionError as error:
        raise NodeError(
            "may not stop process", pid, "Ask as the user that the node runs as, or as root."
        ) from error


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(LOOK_SECONDS)
