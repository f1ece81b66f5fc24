"""Kernel isolation of a process: Linux namespaces and Landlock.

Namespaces replace bubblewrap on machines without it: namespaces(7), pivot_root(2),
mount_setattr(2). Landlock (Linux 5.13, https://docs.kernel.org/userspace-api/landlock.html)
restricts a process to reading files under given paths.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Sequence
from pathlib import Path

DIED_OF = 128  # Exit status is this plus the signal number, as in shells and bubblewrap.

_USER, _PID, _MOUNT, _IPC, _UTS, _NETWORK = 1 << 28, 1 << 29, 1 << 17, 1 << 27, 1 << 26, 1 << 30
_NOSUID, _BIND, _REC, _PRIVATE = 2, 1 << 12, 1 << 14, 1 << 18
_DETACH = 2
PDEATHSIG, NO_NEW_PRIVS = 1, 38  # options of prctl(2)
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
    die_with_parent()
    libc("unshare", _USER | _PID | _MOUNT | _IPC | _UTS | (0 if network else _NETWORK))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _change_root(readable)
    for _ in range(2):
        if child := os.fork():
            os.closerange(0, os.sysconf("SC_OPEN_MAX"))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os._exit(status if status >= 0 else DIED_OF - status)
        die_with_parent()
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    libc("capset", header, data)


def _change_root(readable: Sequence[str]) -> None:
    root = _NEW_ROOT.encode()
    libc("mount", None, b"/", None, _REC | _PRIVATE, None)
    libc("mount", b"tmpfs", root, b"tmpfs", _NOSUID, b"mode=0755,size=1m")
    for path in readable:
        target = Path(_NEW_ROOT + path)
        if Path(path).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        libc("mount", os.fsencode(path), os.fsencode(target), None, _BIND | _REC, None)
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    libc("syscall", _MOUNT_SETATTR, _HERE, root, _RECURSIVE, attributes, ctypes.sizeof(attributes))
    os.chdir(_NEW_ROOT)
    libc("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
    libc("umount2", b".", _DETACH)
    os.chdir("/")


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_KNOWN = (0, 13, 14, 15, 15, 16, 16)  # Number of file access rights per ABI version.
_NET, _SCOPES = 0b11, 0b11  # TCP bind and connect (ABI 4); abstract sockets, signals (ABI 6).


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """Return the kernel's Landlock ABI version, 0 if unsupported."""
    try:
        return libc("syscall", _CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(readable: Sequence[str], listed: Sequence[str], *, network: bool) -> None:
    """Limit this process permanently to these paths by Landlock, or raise ``OSError``.

    Only ``/dev/null`` is writable: many libraries open it.
    """
    version = landlock_version()
    rights = (1 << _KNOWN[min(version, len(_KNOWN) - 1)]) - 1
    net, scopes = _NET if version >= 4 and not network else 0, _SCOPES if version >= 6 else 0
    attr = _Ruleset(rights, net, scopes)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc("syscall", _CREATE, ctypes.byref(attr), size, 0)
    try:
        for path in readable:
            _allow_path(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in filter(os.path.isdir, listed):
            _allow_path(ruleset, path, _READ_DIR)
        _allow_path(ruleset, os.devnull, _WRITE_FILE)
        libc("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
        libc("syscall", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        is_folder = stat.S_ISDIR(os.fstat(parent).st_mode)
        rule = _Beneath(rights if is_folder else rights & ~_READ_DIR, parent)
        libc("syscall", _ADD, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    libc("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def libc(name: str, *arguments: object) -> int:
    """Call a function of the C library; raise ``OSError`` if it returns a negative number."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(function(*values))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


if __name__ == "__main__":
    enter([], network=False)
