"""Which walls this machine can put around a worker, and how one is started behind them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from node.tasks.sandbox import landlock, seccomp

PROBE_SECONDS = 30.0
RESOURCES = "limits on resources only" if os.name == "posix" else "no walls and no limits"
REMEDY = "Install bubblewrap, or allow user namespaces to this user, and install libseccomp."


@dataclass(frozen=True, slots=True)
class Walls:
    """What keeps a worker from everything but its task.

    Attributes:
        kind: what gives it a file system, a network and processes of its own: ``bubblewrap``, the
            worker itself (``namespaces``), ``sandbox-exec`` on macOS (which leaves other processes
            in sight), or nothing.
        landlock: whether the kernel keeps it from opening other files as well.
        seccomp: whether it is bound to a list of system calls.
    """

    kind: Literal["bubblewrap", "namespaces", "sandbox-exec", "none"]
    landlock: bool
    seccomp: bool

    @property
    def whole(self) -> bool:
        """Whether a text that runs as code behind them reaches nothing."""
        return self.kind in ("bubblewrap", "namespaces") and self.seccomp

    def __str__(self) -> str:
        extra = [name for name in ("landlock", "seccomp") if getattr(self, name)]
        named = ", ".join([self.kind] * (self.kind != "none") + extra) or RESOURCES
        return named if self.whole else f"{named}: not enough for tasks that evaluate answers"


@lru_cache
def find_walls() -> Walls:
    """The best that this machine can do, found by trying."""
    if sys.platform == "darwin" and shutil.which("sandbox-exec"):
        return Walls("sandbox-exec", landlock=False, seccomp=False)
    if sys.platform != "linux":
        return Walls("none", landlock=False, seccomp=False)
    has_seccomp, has_landlock = _has_seccomp(), landlock.version() > 0
    if (bwrap := shutil.which("bwrap")) and _works(
        [bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"], "-c", "pass"
    ):
        return Walls("bubblewrap", has_landlock, has_seccomp)
    if platform.machine() in ("x86_64", "aarch64") and _works(
        [], "-m", "node.tasks.sandbox.namespaces"
    ):
        return Walls("namespaces", has_landlock, has_seccomp)
    return Walls("none", has_landlock, has_seccomp)


def before(walls: Walls, readable: Sequence[str], *, network: bool) -> list[str]:
    """What comes before the command of a worker to start it behind the walls."""
    if walls.kind == "bubblewrap":
        return _bubblewrap(readable, network)
    if walls.kind == "sandbox-exec":
        return ["sandbox-exec", "-p", _profile(readable, network)]
    return []


def _bubblewrap(readable: Sequence[str], network: bool) -> list[str]:
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", *(["--share-net"] if network else [])]
    for path in readable:
        command += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    # Last: the folders above the paths are made on it first.
    return [*command, "--remount-ro", "/", "--chdir", "/", "--"]


def _profile(readable: Sequence[str], network: bool) -> str:
    """In the language of macOS's Seatbelt; the last rule that matches decides."""
    paths = " ".join(f'(subpath "{path}")' for path in (*readable, "/System", "/usr/lib"))
    return (
        "(version 1)(deny default)(allow process-exec)(allow sysctl-read)(allow mach-lookup)"
        f"(allow file-read-metadata)(allow file-read* {paths})"
        '(allow file-write* (literal "/dev/null"))(deny process-fork)'
        f"(allow signal (target self)){'(allow network*)' if network else ''}"
    )


def _has_seccomp() -> bool:
    try:
        seccomp.programs()
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def _works(prefix: Sequence[str], *arguments: str) -> bool:
    environment = {"PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in sys.path)}
    command = [*prefix, sys.executable, "-P", *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
