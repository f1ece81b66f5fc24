"""Permanent confinement of a worker process, applied before anything else.

On Linux it includes a seccomp allow-list of system calls, which the node builds with libseccomp and
workers load without. Unlisted calls fail with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from node.tasks.sandbox import namespaces
from node.tasks.sandbox.namespaces import NO_NEW_PRIVS, PDEATHSIG, libc

_OPEN_FILES = 64
OUT_OF_MEMORY = 70  # exit status of a worker


@dataclass(frozen=True, slots=True)
class Confinement:
    """Sandbox settings that the node sends to a worker.

    ``namespaces``: the worker creates its own because no outer sandbox did. ``listed`` are package
    search folders whose entries may be listed. ``program`` is a seccomp program in hex, ``once``
    the one of a process that scores one text; empty if there is none. ``memory_mib`` is address
    space, which macOS does not limit.
    """

    namespaces: bool
    landlock: bool
    readable: tuple[str, ...]
    listed: tuple[str, ...]
    network: bool
    program: str
    once: str
    memory_mib: int
    nice: int


def confine(own: Confinement) -> None:
    """Confine this process permanently on POSIX; raise ``OSError`` on failure."""
    if os.name != "posix":
        return
    import resource

    os.nice(own.nice)
    if own.namespaces:
        namespaces.enter(own.readable, network=own.network)
    if own.landlock:
        # Libraries ask for its name, and Python would look for one that can be written.
        tempfile.tempdir = "/"
        namespaces.restrict(own.readable, own.listed, network=own.network)
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if sys.platform != "darwin":  # which refuses it: each process there starts with more
        limits[resource.RLIMIT_AS] = own.memory_mib << 20
    if not own.once:
        limits[resource.RLIMIT_NPROC] = 0
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if own.program:
        load_seccomp(bytes.fromhex(own.program))


# fmt: off
_ALWAYS = (
    "read", "readv", "pread64", "preadv", "write", "writev", "close", "fstat", "stat", "lstat",
    "newfstatat", "fstatat64", "statx", "statfs", "fstatfs", "lseek", "_llseek", "mprotect",
    "munmap", "mremap", "madvise", "brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "sigreturn", "sigaltstack", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
    "getcwd", "getdents64", "getdents", "dup", "dup2", "dup3", "getpid", "gettid", "getppid",
    "getuid", "geteuid", "getgid", "getegid", "uname", "sysinfo", "clock_gettime", "clock_getres",
    "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getrusage", "getrandom",
    "futex", "sched_yield", "sched_getaffinity", "poll", "ppoll", "select", "pselect6",
    "recvfrom", "recvmsg", "shutdown", "getsockopt", "setsockopt", "exit", "exit_group",
    "restart_syscall", "set_robust_list", "rseq", "arch_prctl", "set_tid_address", "alarm",
    "setitimer", "getitimer",
)
_FORK = ("clone", "fork", "vfork", "wait4", "waitid", "pipe", "pipe2", "kill", "close_range")
_NETWORK = (
    "socket", "connect", "bind", "getsockname", "getpeername", "sendto", "sendmsg", "sendmmsg",
    "recvmmsg", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
    "socketpair",
)
# fmt: on

_NAMELESS = 0o20000000  # O_TMPFILE, which other systems lack
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _NAMELESS
_PROT_WRITE, _MAP_SHARED = 2, 1
_IOCTLS = (0x5401, 0x5421, 0x5450, 0x5451)  # TCGETS FIONBIO FIONCLEX FIOCLEX
_FCNTLS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


@lru_cache
def seccomp_programs(*, network: bool = False, discards: bool = False) -> dict[str, bytes]:
    """Build the seccomp programs of a worker; ``network`` allows connections.

    ``serve`` may read files and answer on its channel. ``split`` may also start and end copies of
    itself. ``once`` is for such a copy, which cannot change even its own limits. The first two may
    open files for writing if ``discards``: Landlock 3 must limit them to ``/dev/null``. Raises
    ImportError, RuntimeError: libseccomp is not installed.
    """
    denied = _NAMELESS if discards else _WRITES
    return {
        "serve": _program(fork=False, limits=True, network=network, denied=denied),
        "split": _program(fork=True, limits=True, network=network, denied=denied),
        "once": _program(fork=False, limits=False, network=network, denied=_WRITES),
    }


def load_seccomp(program: bytes) -> None:
    """Bind this process and its children to a seccomp program, or raise ``OSError``."""
    fprog = _Program(len(program) // 8, program)
    libc("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    libc("prctl", _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(fprog), 0, 0)


def _program(*, fork: bool, limits: bool, network: bool, denied: int) -> bytes:
    """Build one program; ``denied`` are flags with which files are not opened."""
    # Imported here: only the node on Linux has it.
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
    for name in (*_ALWAYS, *(_FORK if fork else ()), *(_NETWORK if network else ())):
        _allow(pyseccomp, rules, name)
    masked, equal = pyseccomp.MASKED_EQ, pyseccomp.EQ
    for name, flags in (("open", 1), ("openat", 2)):
        _allow(pyseccomp, rules, name, pyseccomp.Arg(flags, masked, denied, 0))
    for name in ("mmap", "mmap2"):
        _allow(pyseccomp, rules, name, pyseccomp.Arg(3, masked, _MAP_SHARED, 0))
        _allow(pyseccomp, rules, name, pyseccomp.Arg(2, masked, _PROT_WRITE, 0))
    for name, allowed in (("ioctl", _IOCTLS), ("fcntl", _FCNTLS), ("fcntl64", _FCNTLS)):
        for command in allowed:
            _allow(pyseccomp, rules, name, pyseccomp.Arg(1, equal, command))
    if not network:
        _allow(pyseccomp, rules, "sendto", pyseccomp.Arg(4, equal, 0))
    unchanged = () if limits else (pyseccomp.Arg(2, equal, 0),)
    _allow(pyseccomp, rules, "prlimit64", pyseccomp.Arg(0, equal, 0), *unchanged)
    if fork:
        for option in (PDEATHSIG, _PR_SET_SECCOMP, NO_NEW_PRIVS):
            _allow(pyseccomp, rules, "prctl", pyseccomp.Arg(0, equal, option))
    # Filters cannot read clone3's flags. ENOSYS makes the C library fall back to clone.
    rules.add_rule(pyseccomp.ERRNO(38), "clone3")
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow(pyseccomp: Any, rules: Any, name: str, *arguments: Any) -> None:
    """Allow a system call; skip one that this libseccomp does not know."""
    try:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    except ValueError:
        return
    rules.add_rule(pyseccomp.ALLOW, number, *arguments)
