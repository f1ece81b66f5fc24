"""Atomic and private files, file locks, and errors of a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from node.errors import DiskFullError, NodeError
from swarm.common.util import PRIVATE_FILE, flush, make_private, replace, replace_durably

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_CODES = (112,) if sys.platform == "win32" else FULL  # as a library in Rust prints them
_NEARLY_NOTHING = 1 << 20

PRIVATE_FOLDER = 0o700
DAMAGES = ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
"""Errors of reading JSON from a damaged file, or from one of another program."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def private_umask() -> Iterator[None]:
    """Make all that this process creates private; for files that libraries write.

    Functions here set permissions themselves, because another thread may end a block of its own.
    """
    old_umask = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(old_umask)


def let_others_read(folder: Path) -> None:
    """Give a folder's files, which libraries and this module write private, usual permissions."""
    umask = os.umask(_OTHERS)
    os.umask(umask)
    for path in filter(Path.is_file, folder.rglob("*")):
        path.chmod(0o666 & ~umask)


def tighten(path: Path) -> bool:
    """Remove other users' access to a path; return whether they had any.

    Other users' paths and shared folders with a sticky bit, such as ``/tmp``, stay unchanged.
    """
    if os.name != "posix" or path.is_symlink():
        return False
    info = path.stat()
    if not info.st_mode & _OTHERS or info.st_uid != os.getuid() or info.st_mode & stat.S_ISVTX:
        return False
    path.chmod(stat.S_IMODE(info.st_mode) & ~_OTHERS)
    return True


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` with ``data`` in one step; ``durable`` survives a power cut.

    Raises NodeError if it cannot be written; the earlier content then remains.
    """
    with replacing(path, durable=durable) as draft:
        draft.write(data)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path``; on NodeError the earlier file remains."""
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with make_private(tmp).open("wb") as draft:
            yield draft
        (replace_durably if durable else replace)(tmp, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):  # a read-only file system refuses even this; a sweep removes it
            tmp.unlink(missing_ok=True)


def sweep_drafts(folder: Path) -> None:
    """Remove drafts of a killed process; no other process may write to ``folder``."""
    for draft in folder.glob(".*.tmp"):
        if draft.suffixes[-2:-1] and draft.suffixes[-2][1:].isdigit():
            draft.unlink(missing_ok=True)


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Return whether a full disk caused ``error``. Call it before you clean up.

    Tensor writers hide the system's error, so the chain of causes and the free space are checked.
    That of safetensors has only its number, in the text, and has deleted its file.
    """
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in FULL:
            return True
        if any(f"(os error {code})" in str(link) for code in FULL_CODES):
            return True
        link = link.__cause__ or link.__context__
    return folder.is_dir() and shutil.disk_usage(folder).free < _NEARLY_NOTHING


def write_error(path: Path, error: OSError) -> NodeError:
    if is_disk_full(error, path.parent):
        remedy = "Free some space and start again; the run resumes from the last checkpoint."
        return DiskFullError("no space left to write", path, remedy)
    remedy = "Check the disk, and the owner and permissions of that folder."
    return NodeError(f"cannot write ({error.strerror or error})", path, remedy)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise NodeError for an OSError of the block, which writes to ``path``."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def append_whole(file: FileIO, data: bytes) -> None:
    """Write at the end of an unbuffered file; a full disk leaves no part of it."""
    begin = file.tell()
    if file.write(data) < len(data):
        file.truncate(begin)
        file.seek(begin)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def make_folder(path: Path, option: str, *, fresh: bool = False) -> None:
    """Create the folder that a command's ``option`` names, with its parents.

    Raises NodeError if it cannot be created, is not a folder, or is not new although ``fresh``.
    """
    try:
        path.mkdir(parents=True, exist_ok=not fresh)
    except OSError as error:
        remedy = f"Name a new one, in a place that you may write to, with {option}."
        raise NodeError(f"cannot make the folder ({error.strerror})", path, remedy) from error


@contextmanager
def filling(folder: Path, place: Path | None = None) -> Iterator[None]:
    """Empty ``folder`` if the block, which writes all that is in it, fails.

    Raises DiskFullError for a full disk; it names ``place``, by default the folder.
    """
    try:
        yield
    except BaseException as error:
        is_full = is_disk_full(error, folder)
        with suppress(OSError):  # the block's error is the one to report
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
        if is_full:
            remedy = "Free some space there, and run the command again."
            raise DiskFullError("no space left to write to", place or folder, remedy) from error
        raise


def write_new(path: Path, data: bytes) -> None:
    """Write a new private file; raise NodeError if it exists or cannot be written."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    except OSError as error:
        remedy = "Name a new file in a folder that you may write to."
        raise NodeError(f"cannot write ({error.strerror})", path, remedy) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            flush(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise write_error(path, error) from error


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Wait for an exclusive lock on an open file, or with ``shared`` for a shared one."""
    _lock(descriptor, shared, wait=True)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to take the lock of :func:`lock` without waiting; return whether it worked."""
    return _lock(descriptor, shared, wait=False)


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _AT_ONCE, _ALONE = 1, 2
    _HELD_BY_OTHERS = 33
    _BEHIND_EVERY_END = 0x7FFFFFFF

    class _Place(ctypes.Structure):
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
