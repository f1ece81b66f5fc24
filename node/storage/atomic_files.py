"""Writing files so that a crash or a full disk leaves the old content or the new, never half."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from node.errors import DiskFullError, NodeError
from swarm.common.util import PRIVATE_FILE, make_private, replace_durably

FULL = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_NOTHING = 1 << 20


PRIVATE_FOLDER = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def private_umask() -> Iterator[None]:
    """Whatever this process and its children make in the block is their owner's alone.

    It is for what libraries write; what is written here says so itself, as another thread may end
    such a block of its own.
    """
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def tighten(path: Path) -> bool:
    """Take a file or folder from other users; whether they could do anything with it before.

    Left as it is: what belongs to somebody else, and a folder with a sticky bit, which is
    everybody's, such as ``/tmp``.
    """
    if os.name != "posix" or path.is_symlink():
        return False
    info = path.stat()
    if not info.st_mode & _OTHERS or info.st_uid != os.getuid() or info.st_mode & stat.S_ISVTX:
        return False
    path.chmod(stat.S_IMODE(info.st_mode) & ~_OTHERS)
    return True


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` in one step; ``durable`` survives a power cut as well.

    Raises:
        NodeError: it cannot be written; what was there before still is.
    """
    with replacing(path, durable=durable) as draft:
        draft.write(data)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` in one step when the block ends, as a whole.

    Raises:
        NodeError: it cannot be written; what was there before still is.
    """
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with make_private(tmp).open("wb") as draft:
            yield draft
        replace = replace_durably if durable else Path.replace
        replace(tmp, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        tmp.unlink(missing_ok=True)


def sweep_drafts(folder: Path) -> None:
    """Remove what :func:`replacing` of a process that was killed has left in ``folder``.

    For whoever knows that no other process writes there.
    """
    for draft in folder.glob(".*.tmp"):
        if draft.suffixes[-2:-1] and draft.suffixes[-2][1:].isdigit():
            draft.unlink(missing_ok=True)


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Whether ``error`` came from a full disk.

    Writers of tensors wrap the system's error in their own, so beside the chain of causes the
    free space of ``folder`` is looked at. Ask before you clean up.
    """
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in FULL:
            return True
        link = link.__cause__ or link.__context__
    return folder.is_dir() and shutil.disk_usage(folder).free < _NEARLY_NOTHING


def write_error(path: Path, error: OSError) -> NodeError:
    """What to say when ``path`` could not be written."""
    if is_disk_full(error, path.parent):
        return DiskFullError(
            "no space left to write",
            path,
            "Free some space and start again; it goes on from the last checkpoint.",
        )
    return NodeError(
        f"cannot write ({error.strerror or error})",
        path,
        "Look at the disk, and at the owner and permissions of that folder.",
    )


def make_folder(path: Path, option: str, *, fresh: bool = False) -> None:
    """Make a folder that a command's ``option`` names, with those above it.

    Args:
        fresh: whether it must not be there yet.

    Raises:
        NodeError: it cannot be made, or is no folder.
    """
    try:
        path.mkdir(parents=True, exist_ok=not fresh)
    except OSError as error:
        raise NodeError(
            f"cannot make the folder ({error.strerror})",
            path,
            f"Name a new one, in a place that is yours, with {option}.",
        ) from error


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, for its owner alone.

    Raises:
        NodeError: it exists, or cannot be written.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    except OSError as error:
        raise NodeError(
            f"cannot write ({error.strerror})", path, "Name a new file in a folder of yours."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise write_error(path, error) from error


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
