"""Run a program in a real terminal under a small shell with job control."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[3]
PATIENCE = 600.0
LINES, COLUMNS = 40, 100
SHELL = """
import fcntl, os, resource, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
job = subprocess.Popen([sys.executable, *sys.argv[3:]], process_group=0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.tcsetpgrp(0, job.pid)
orders, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w", 1)
print(job.pid, file=answers)
for order in orders:
    if order.strip() in ("front", "back"):
        os.tcsetpgrp(0, job.pid if order.strip() == "front" else os.getpgrp())
        print("done", file=answers)
        continue
    status = os.waitpid(job.pid, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        print("stopped", file=answers)
    elif os.WIFSIGNALED(status):
        print("killed", os.WTERMSIG(status), file=answers)
    else:
        print("exited", os.WEXITSTATUS(status), file=answers)
"""


class TerminalJob:
    """``python *arguments`` in the foreground of its own terminal.

    Attributes:
        pid: process id of the program.
        before: terminal modes before the program started.
    """

    def __init__(self, *arguments: str, folder: Path = ROOT) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", LINES, COLUMNS, 0, 0))
        self.before = self.modes()
        (orders, self._orders), (self._answers, answers) = os.pipe(), os.pipe()
        self._shell = subprocess.Popen(
            [sys.executable, "-c", SHELL, str(orders), str(answers), *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            pass_fds=(orders, answers),
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm"},
        )
        for descriptor in (theirs, orders, answers):
            os.close(descriptor)
        self._seen = b""
        self._ended = False
        self.pid = int(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._ended:
            os.killpg(self.pid, signal.SIGKILL)
        for descriptor in (self._orders, self._answers, self._ours):
            os.close(descriptor)
        self._shell.wait(PATIENCE)

    def modes(self) -> list[object]:
        """Return the terminal modes."""
        return termios.tcgetattr(self._ours)

    def press(self, keys: bytes) -> None:
        """Type keys into the terminal."""
        os.write(self._ours, keys)

    def order(self, order: str) -> str:
        """Send ``front``, ``back`` or ``wait`` to the shell; return its answer."""
        os.write(self._orders, f"{order}\n".encode())
        answer = self._answer()
        self._ended = answer.startswith(("exited", "killed"))
        return answer

    def until(self, text: str) -> str:
        """Read until the program shows ``text``; return the output before it."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self._seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not appear: {self._seen[-2000:]!r}"
            if select.select([self._ours], [], [], min(left, 1.0))[0]:
                self._seen += os.read(self._ours, 65536)
        passed, _, self._seen = self._seen.partition(text.encode())
        return passed.decode(errors="replace")

    def _answer(self) -> str:
        """Return a line of the shell; also read the program's output, or it would block."""
        line, deadline = b"", time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            assert time.monotonic() < deadline, f"the shell did not answer: {self._seen[-2000:]!r}"
            for ready in select.select([self._answers, self._ours], [], [], 1.0)[0]:
                if ready == self._answers:
                    line += os.read(self._answers, 64)
                else:
                    self._seen += os.read(self._ours, 65536)
        return line.decode().strip()
