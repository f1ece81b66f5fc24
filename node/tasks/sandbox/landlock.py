"""Landlock: restrict a process to reading files under given paths (Linux 5.13).

Kernel interface: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38

_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_KNOWN = (0, 13, 14, 15, 15, 16, 16)  # Number of file access rights per ABI version.
_NET, _SCOPES = 0b11, 0b11  # TCP bind and connect (ABI 4); abstract sockets, signals (ABI 6).


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the kernel's Landlock ABI version, 0 if unsupported."""
    try:
        return _call(_CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(readable: Sequence[str], listed: Sequence[str], *, network: bool) -> None:
    """Permanently limit this process to read ``readable`` and list ``listed``.

    Raises OSError: the kernel lacks Landlock, or a path cannot be opened.
    """
    known = version()
    rights = (1 << _KNOWN[min(known, len(_KNOWN) - 1)]) - 1
    wanted = _Ruleset(
        rights, _NET if known >= 4 and not network else 0, _SCOPES if known >= 6 else 0
    )
    size = 8 if known < 4 else 16 if known < 6 else 24
    ruleset = _call(_CREATE, ctypes.byref(wanted), size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in filter(os.path.isdir, listed):
            _allow(ruleset, path, _READ_DIR)
        if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        _call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        folder = stat.S_ISDIR(os.fstat(parent).st_mode)
        rule = _Beneath(rights if folder else rights & ~_READ_DIR, parent)
        _call(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
