"""Linux namespaces: give a process its own network, PIDs, users and file system.

This replaces bubblewrap on machines without it. See namespaces(7), pivot_root(2) and
mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

DIED_OF = 128  # Exit status is this plus the signal number, as in shells and bubblewrap.

_USER, _PID, _MOUNT, _IPC, _UTS, _NETWORK = 1 << 28, 1 << 29, 1 << 17, 1 << 27, 1 << 26, 1 << 30
_NOSUID, _BIND, _REC, _PRIVATE = 2, 1 << 12, 1 << 14, 1 << 18
_DETACH = 2
_PDEATHSIG = 1
_HERE, _RECURSIVE, _READ_ONLY = -100, 0x8000, 1 | 2
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITIES = 0x20080522
_NEW_ROOT = "/proc"  # Exists on every Linux and holds nothing importable.


def enter(readable: Sequence[str], *, network: bool) -> None:
    """Enter new namespaces where only ``readable`` exists and nothing is writable.

    The calling process waits outside; it and the new process end together. PID 1 of the new
    namespace also only waits: the kernel withholds most signals from it. Raises OSError: the
    machine does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    _libc("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc("unshare", _USER | _PID | _MOUNT | _IPC | _UTS | (0 if network else _NETWORK))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _change_root(readable)
    for _ in range(2):
        if child := os.fork():
            _end_with(child)
        _libc("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    _libc("capset", header, nothing)


def _change_root(readable: Sequence[str]) -> None:
    root = _NEW_ROOT.encode()
    _libc("mount", None, b"/", None, _REC | _PRIVATE, None)
    _libc("mount", b"tmpfs", root, b"tmpfs", _NOSUID, b"mode=0755,size=1m")
    for path in readable:
        target = Path(_NEW_ROOT + path)
        if Path(path).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        _libc("mount", os.fsencode(path), os.fsencode(target), None, _BIND | _REC, None)
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    _libc("syscall", _MOUNT_SETATTR, _HERE, root, _RECURSIVE, attributes, ctypes.sizeof(attributes))
    os.chdir(_NEW_ROOT)
    _libc("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
    _libc("umount2", b".", _DETACH)
    os.chdir("/")


def _end_with(child: int) -> NoReturn:
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else DIED_OF - status)


def _libc(name: str, *arguments: object) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if function(*given) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


if __name__ == "__main__":
    enter([], network=False)
