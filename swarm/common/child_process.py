"""Child processes, and messages to and from them.

Every child is started by :func:`command` and :func:`options` and has one end of a socket pair as
its stdin. Messages are msgpack values, each after its length (4 bytes, little-endian).
:class:`Channel` is the blocking end; :class:`swarm.transport.subprocess.link.Link` is the
asyncio end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from swarm.common.util import import_path

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 32 << 20
_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 20


class ChannelError(OSError):
    """A closed connection or an invalid message."""


def packed(message: Any) -> bytes:
    """Encode a message with its length prefix; raise ValueError if it is too large."""
    body: bytes = msgpack.packb(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes: at most {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Unread:
    """A buffer of received bytes that yields whole messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        self._data += chunk

    def missing(self) -> int:
        """Return the bytes that the next message lacks; raise ChannelError if too many."""
        if len(self._data) < _LENGTH.size:
            return _LENGTH.size - len(self._data)
        size: int = _LENGTH.unpack_from(self._data)[0]
        if size > MAX_MESSAGE_BYTES:
            raise ChannelError(f"a message of {size} bytes: at most {MAX_MESSAGE_BYTES}")
        return max(0, _LENGTH.size + size - len(self._data))

    def take(self) -> Any:
        """Remove and return the next message, which is complete, or raise ChannelError."""
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        body = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        try:
            return msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException) as error:
            raise ChannelError(f"no message: {error}") from error

    def take_map(self) -> dict[str, Any]:
        """:meth:`take` a message that has to be a map."""
        if not isinstance(message := self.take(), dict):
            raise ChannelError("no message: not a map")
        return message


class Channel:
    """One end of the socket pair; one thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unread = Unread()

    def send(self, message: dict[str, Any], seconds: float | None = None) -> None:
        """Send a message; raise TimeoutError, ChannelError or, if too large, ValueError."""
        data = packed(message)
        try:
            self._end.settimeout(seconds)
            self._end.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError(f"the other side is gone: {error}") from error

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next message, or raise TimeoutError or ChannelError."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while missing := self._unread.missing():
            timeout = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            # A message usually arrives whole, often together with the next ones.
            max_bytes = min(max(missing, _READ_BYTES), _MOST_READ_BYTES)
            self._unread.add(self._received(max_bytes, timeout))
        return self._unread.take_map()

    def arrived(self) -> list[dict[str, Any]]:
        """Return the messages that have already arrived; raise as :meth:`receive`."""
        messages = []
        with contextlib.suppress(BlockingIOError):  # nothing has arrived
            self._unread.add(self._received(_MOST_READ_BYTES, 0.0))
        while not self._unread.missing():
            messages.append(self._unread.take_map())
        return messages

    def fileno(self) -> int:
        return self._end.fileno()

    def detach(self) -> socket.socket:
        """Return the socket for another owner; no data may be unread."""
        return socket.socket(fileno=self._end.detach())

    def close(self) -> None:
        """Close this end; the other end and a receiver here read end of file."""
        with contextlib.suppress(OSError):  # the other side may have closed first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _received(self, max_bytes: int, seconds: float | None) -> bytes:
        try:
            self._end.settimeout(seconds)
            chunk = self._end.recv(max_bytes)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            raise ChannelError(f"the other side is gone: {error}") from error
        if not chunk:
            raise ChannelError("the other side is gone: end of file")
        return chunk


def socket_at_stdin() -> socket.socket:
    """Return the socket at descriptor 0 (shared through it on Windows), freeing stdin."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    end = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return end


def take_over_stdin() -> Channel:
    """Return the channel to the parent, whose socket is this process's stdin."""
    return Channel(socket_at_stdin())


# Windows needs this variable to open a socket.
_NEEDED = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}


def interpreter(executable: str, base: str, *, windows: bool) -> tuple[str, dict[str, str]]:
    """Return the program to start as this Python, and the variables that it needs.

    On Windows, the ``python.exe`` of a virtual environment only starts the ``base`` one, which has
    another process id. Sockets are shared with an id, and nodes report theirs, so the base one is
    started, as in :mod:`multiprocessing`.
    """
    if windows and executable != base:
        return base, {"__PYVENV_LAUNCHER__": executable}
    return executable, {}


_PYTHON, _LAUNCHER = interpreter(
    sys.executable,
    getattr(sys, "_base_executable", sys.executable),
    windows=sys.platform == "win32",
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command of ``python -m module``, which imports nothing from its folder."""
    return [_PYTHON, "-P", "-m", module, *arguments]


def variables() -> dict[str, str]:
    """Return the environment of a :func:`command` that inherits this process's.

    Its output into a file is UTF-8, unless ``PYTHONIOENCODING`` names another encoding.
    """
    return {"PYTHONIOENCODING": "utf-8", **os.environ, "PYTHONPATH": import_path(), **_LAUNCHER}


# CREATE_NEW_PROCESS_GROUP, which also turns off Ctrl-C, and CREATE_NO_WINDOW: a hidden console
_NEW_GROUP, _OWN_CONSOLE = 0x200, 0x8000000


def own_group(*, lasting: bool = False) -> dict[str, Any]:
    """Return how a process is started that Ctrl-C in this terminal does not reach.

    ``lasting``: on Windows, it also outlives the terminal, as it does on other systems.
    """
    if sys.platform == "win32":
        return {"creationflags": _NEW_GROUP | (_OWN_CONSOLE if lasting else 0)}
    return {"start_new_session": True}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of its :func:`own_group` and its children; on Windows, only itself."""
    if sys.platform == "win32":
        process.kill()
        return
    # The group has ended. macOS refuses with EPERM until its last process is waited for.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit status of a process, None if it still runs after ``seconds``."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def options(end: socket.socket, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return how a child is started with ``end`` as its stdin and a complete ``environment``.

    The child reads end of file when this process ends; Ctrl-C does not reach it. stdout is
    discarded and stderr is a pipe. Windows shares the socket, because it cannot inherit it
    (untested).
    """
    return {
        "stdin": subprocess.PIPE if sys.platform == "win32" else end.fileno(),
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "env": {**environment, **_NEEDED, **_LAUNCHER},
        **own_group(),
    }


def spawn(
    module: str, environment: Mapping[str, str], *arguments: str, before: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Run ``python -m module`` behind the command ``before``; return it and the channel to it."""
    parent_end, child_end = socket.socketpair()
    with child_end:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [*before, *command(module, *arguments)], **options(child_end, environment)
        )
        if sys.platform == "win32":
            with process.stdin:
                process.stdin.write(child_end.share(process.pid))
    return process, Channel(parent_end)
