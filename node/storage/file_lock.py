"""Locks on open files, which end with the process that holds them.

``flock`` where the system has it. On Windows ``LockFileEx``, written from its documentation and not
run by us: there a lock keeps others from the bytes that it is on, so it is on one that no file has.
"""

from __future__ import annotations

import sys
from typing import IO


def lock(handle: IO[bytes] | int, *, shared: bool = False) -> None:
    """Wait until the file is this process's, or with ``shared`` nobody's alone.

    Args:
        handle: an open file, or its descriptor.
    """
    _lock(_descriptor(handle), shared, wait=True)


def try_lock(handle: IO[bytes] | int, *, shared: bool = False) -> bool:
    """As :func:`lock`, but for waiting; whether it was to be had."""
    return _lock(_descriptor(handle), shared, wait=False)


def _descriptor(handle: IO[bytes] | int) -> int:
    return handle if isinstance(handle, int) else handle.fileno()


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _AT_ONCE, _ALONE = 1, 2
    _HELD_BY_OTHERS = 33
    _BEHIND_EVERY_END = 0x7FFFFFFF

    class _Place(ctypes.Structure):
        """``OVERLAPPED``: where the locked byte is."""

        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    def _lock(descriptor: int, shared: bool, *, wait: bool) -> bool:
        flags = (0 if shared else _ALONE) | (0 if wait else _AT_ONCE)
        file = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        place = _Place(offset_high=_BEHIND_EVERY_END)
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        if kernel.LockFileEx(file, flags, 0, 1, 0, ctypes.byref(place)):
            return True
        if ctypes.get_last_error() == _HELD_BY_OTHERS:
            return False
        raise ctypes.WinError(ctypes.get_last_error())

else:
    import fcntl

    def _lock(descriptor: int, shared: bool, *, wait: bool) -> bool:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
