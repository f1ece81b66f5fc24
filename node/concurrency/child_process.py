"""Starting a Python process that talks through a socket pair."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from node.concurrency.channel import Channel


def spawn(
    module: str, environment: Mapping[str, str], *arguments: str, before: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Run ``python -m module`` with one end of a socket pair as its standard input.

    The process reads end of file there as soon as this one closes its end or dies. Ctrl-C is this
    process's to handle and does not reach it.

    Args:
        environment: all that it inherits. Its standard output is discarded, its standard error
            is a pipe.
        before: a command that runs the process, with its arguments.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*before, sys.executable, "-P", "-m", module, *arguments],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    return process, Channel(ours)
