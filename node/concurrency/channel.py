"""Messages between a process and its child: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any

import msgpack

from swarm.common.processes import socket_at_stdin

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 32 << 20
_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 20


class ChannelError(OSError):
    """The other side is gone, or sent something that is no message."""


class Channel:
    """One end of the pair. One thread may send while another one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unread = bytearray()

    def send(self, message: dict[str, Any], seconds: float | None = None) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other side did not take it within ``seconds``.
            ChannelError: the other side is gone.
            ValueError: the message is larger than ``MAX_MESSAGE_BYTES``.
        """
        body = msgpack.packb(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes: at most {MAX_MESSAGE_BYTES}")
        try:
            self._end.settimeout(seconds)
            self._end.sendall(_LENGTH.pack(len(body)) + body)
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
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if size > MAX_MESSAGE_BYTES:
            raise ChannelError(f"a message of {size} bytes: at most {MAX_MESSAGE_BYTES}")
        body = self._exactly(size, deadline)
        try:
            message = msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException) as error:
            raise ChannelError(f"no message: {error}") from error
        if not isinstance(message, dict):
            raise ChannelError("no message: not a map")
        return message

    def close(self) -> None:
        """Close this end; the other one reads end of file, as does a thread that receives here."""
        with contextlib.suppress(OSError):  # the other side may have closed first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        while len(self._unread) < size:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            # A message mostly comes whole, head and body, often with those that follow it.
            wanted = min(max(size - len(self._unread), _READ_BYTES), _MOST_READ_BYTES)
            try:
                self._end.settimeout(left)
                chunk = self._end.recv(wanted)
            except TimeoutError:
                raise
            except OSError as error:
                raise ChannelError(f"the other side is gone: {error}") from error
            if not chunk:
                raise ChannelError("the other side is gone: end of file")
            self._unread += chunk
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data


def take_over_stdin() -> Channel:
    """The channel to the process that started this one with a socket as its standard input."""
    return Channel(socket_at_stdin())
