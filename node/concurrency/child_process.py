"""Starting a Python process that talks through a socket pair."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from node.concurrency.channel import Channel

_NEEDED = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
"""Without which Windows opens no socket."""


def spawn(
    module: str, environment: Mapping[str, str], *arguments: str, before: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Run ``python -m module`` with one end of a socket pair as its standard input.

    The process reads end of file there as soon as this one closes its end or dies. Ctrl-C is this
    process's to handle and does not reach it. On Windows, where a socket cannot be inherited as a
    file, the end is shared as Python documents it, which was not run by us.

    Args:
        environment: all that it inherits. Its standard output is discarded, its standard error
            is a pipe.
        before: a command that runs the process, with its arguments.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*before, sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE if sys.platform == "win32" else theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, **_NEEDED},
            start_new_session=True,
        )
        if sys.platform == "win32":
            with process.stdin:
                process.stdin.write(theirs.share(process.pid))
    return process, Channel(ours)
