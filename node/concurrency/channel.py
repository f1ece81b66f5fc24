"""Messages between a process and its child: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from swarm.common.util import socket_at_stdin

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 32 << 20
_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 20


class ChannelError(OSError):
    """The other side is gone, or sent something that is no message."""


def packed(message: dict[str, Any]) -> bytes:
    """A message as it is sent.

    Raises:
        ValueError: it is larger than ``MAX_MESSAGE_BYTES``.
    """
    body: bytes = msgpack.packb(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes: at most {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Unread:
    """What has come, until it is taken message by message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Take in what came next."""
        self._data += chunk

    def missing(self) -> int:
        """Bytes that the next message lacks at the least; 0 where it is here.

        Raises:
            ChannelError: it would be larger than ``MAX_MESSAGE_BYTES``.
        """
        if len(self._data) < _LENGTH.size:
            return _LENGTH.size - len(self._data)
        size: int = _LENGTH.unpack_from(self._data)[0]
        if size > MAX_MESSAGE_BYTES:
            raise ChannelError(f"a message of {size} bytes: at most {MAX_MESSAGE_BYTES}")
        return max(0, _LENGTH.size + size - len(self._data))

    def take(self) -> dict[str, Any]:
        """The next message, which is here.

        Raises:
            ChannelError: it is none.
        """
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        body = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        try:
            message = msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException) as error:
            raise ChannelError(f"no message: {error}") from error
        if not isinstance(message, dict):
            raise ChannelError("no message: not a map")
        return message


class Channel:
    """One end of the pair. One thread may send while another one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unread = Unread()

    def send(self, message: dict[str, Any], seconds: float | None = None) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other side did not take it within ``seconds``.
            ChannelError: the other side is gone.
            ValueError: the message is larger than ``MAX_MESSAGE_BYTES``.
        """
        data = packed(message)
        try:
            self._end.settimeout(seconds)
            self._end.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError(f"the other side is gone: {error}") from error

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """The next message.

        Raises:
            TimeoutError: none was complete after ``seconds``.
            ChannelError: the other side is gone, or what came is no message.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while missing := self._unread.missing():
            self._unread.add(self._chunk(missing, deadline))
        return self._unread.take()

    def arrived(self) -> list[dict[str, Any]]:
        """The messages that are here already; waits for none.

        Raises:
            ChannelError: as :meth:`receive`.
        """
        messages = []
        with contextlib.suppress(BlockingIOError):  # nothing has come
            self._unread.add(self._received(_MOST_READ_BYTES, 0.0))
        while not self._unread.missing():
            messages.append(self._unread.take())
        return messages

    def fileno(self) -> int:
        """For an event loop that waits until something has come."""
        return self._end.fileno()

    def detach(self) -> socket.socket:
        """The socket, with nothing unread, for whoever goes on in this channel's place."""
        return socket.socket(fileno=self._end.detach())

    def close(self) -> None:
        """Close this end; the other one reads end of file, as does a thread that receives here."""
        with contextlib.suppress(OSError):  # the other side may have closed first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _chunk(self, missing: int, deadline: float | None) -> bytes:
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        # A message mostly comes whole, head and body, often with those that follow it.
        return self._received(min(max(missing, _READ_BYTES), _MOST_READ_BYTES), left)

    def _received(self, most: int, seconds: float | None) -> bytes:
        try:
            self._end.settimeout(seconds)
            chunk = self._end.recv(most)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            raise ChannelError(f"the other side is gone: {error}") from error
        if not chunk:
            raise ChannelError("the other side is gone: end of file")
        return chunk


def take_over_stdin() -> Channel:
    """The channel to the process that started this one with a socket as its standard input."""
    return Channel(socket_at_stdin())


_NEEDED = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
"""Without which Windows opens no socket."""


def spawn(
    module: str, environment: Mapping[str, str], *arguments: str, before: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Run ``python -m module`` with one end of a socket pair as its standard input.

    The process reads end of file there as soon as this one closes its end or dies. Ctrl-C is this
    process's to handle and does not reach it. On Windows, where a socket cannot be inherited as a
    file, the end is shared as Python documents it, which was not run by us.

    Args:
        environment: all that it inherits. Its standard output is discarded, its standard error
            is a pipe.
        before: a command that runs the process, with its arguments.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*before, sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE if sys.platform == "win32" else theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, **_NEEDED},
            start_new_session=True,
        )
        if sys.platform == "win32":
            with process.stdin:
                process.stdin.write(theirs.share(process.pid))
    return process, Channel(ours)
