"""What a process and its child have to know of each other, whatever they say."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path


def import_path() -> str:
    """Where this process imports from, for the environment of another."""
    return os.pathsep.join(str(Path(path).absolute()) for path in sys.path)


def in_words(status: int) -> str:
    """An exit status as people say it."""
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"


def socket_at_stdin() -> socket.socket:
    """The socket at descriptor 0, moved where nothing that reads standard input meets it.

    On Windows, where a socket is no file, standard input says which one was shared.
    """
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    end = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return end
