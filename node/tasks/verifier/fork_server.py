"""Workers as copies of one process that has imported what they need (Linux).

The imports of a worker are most of its memory, and copies share them. The process reads no text, no
task and no setting, and has one thread. A copy first closes every descriptor that is not its own,
then confines itself: each has its own namespaces, limits and system calls, as one started alone.
Copies share the addresses of what was imported. They end with this process, which ends with the
node or after its last copy.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from node.tasks.sandbox.namespaces import die_with_parent
from swarm.common.child_process import Channel, ChannelError, socket_at_stdin, spawn, waited

MODULE = "node.tasks.verifier.fork_server"
NUMERIC = "numeric"  # beside kinds of sources: JSONL answers that are compared as numbers
_NUMBER = struct.Struct("<i")  # of a process, then its exit status
_END_SECONDS = 2.0


@dataclass(eq=False)
class ForkServer:
    """The node's end of the process; ``copies`` counts those that have not ended."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    copies: int = 0

    def close(self) -> None:
        self.end.close()
        if waited(self.process, _END_SECONDS) is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


_lock = threading.Lock()
_servers: dict[tuple[object, ...], ForkServer] = {}


def _acquired(module: str, environment: Mapping[str, str], sources: Collection[str]) -> ForkServer:
    key = (module, *sorted(environment.items()), *sorted(sources))
    with _lock:
        server = _servers.get(key)
        if server is None or server.process.poll() is not None:
            process, channel = spawn(MODULE, environment, module, *sorted(sources))
            server = _servers[key] = ForkServer(process, channel.detach())
        server.copies += 1
    return server


def _release(server: ForkServer) -> None:
    with _lock:
        server.copies -= 1
        if server.copies:
            return
        for key in [key for key, other in _servers.items() if other is server]:
            del _servers[key]
    server.close()


@dataclass(eq=False)
class ForkedProcess:
    """A copy, with the methods of ``subprocess.Popen`` that its owner needs."""

    pid: int
    stderr: IO[bytes]
    server: ForkServer
    _descriptor: int  # of the process: its number may already be that of another
    _status: socket.socket
    _ended: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        """Return the exit status, None while it runs; wait for that of one that has ended."""
        if self._ended is None:
            poller = select.poll()
            poller.register(self._descriptor, select.POLLIN)
            if not poller.poll(0):
                return None
        return self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise ``subprocess.TimeoutExpired`` while it runs."""
        if self._ended is None:
            self._status.settimeout(timeout)
            try:
                status = self._status.recv(_NUMBER.size)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0) from error
            # Without a status the server was killed, and the kernel kills its copies with it.
            self._ended = _NUMBER.unpack(status)[0] if status else -signal.SIGKILL
            self._status.close()
            os.close(self._descriptor)
            _release(self.server)
        return self._ended

    def kill(self) -> None:
        if self._ended is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


def fork(
    module: str, environment: Mapping[str, str], sources: Collection[str], seconds: float
) -> tuple[ForkedProcess, Channel]:
    """Start a copy that calls ``main`` of ``module``; return it and the channel to it.

    ``sources`` names kinds of task sources whose libraries it needs. Raises ChannelError,
    TimeoutError: the server ended, or took more than ``seconds``.
    """
    server = _acquired(module, environment, sources)
    (ours, theirs), (status, reporter) = socket.socketpair(), socket.socketpair()
    read, write = os.pipe()
    try:
        with theirs, reporter:
            socket.send_fds(server.end, [b"\0"], [theirs.fileno(), write, reporter.fileno()])
        status.settimeout(seconds)
        data, descriptors, _, _ = socket.recv_fds(status, _NUMBER.size, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise ChannelError("the fork server has ended without a copy")
    except BaseException:
        for end in (ours, status):
            end.close()
        os.close(read)
        _release(server)
        raise
    finally:
        os.close(write)
    (pid,) = _NUMBER.unpack(data)
    return ForkedProcess(pid, os.fdopen(read, "rb"), server, descriptors[0], status), Channel(ours)


def main() -> None:
    """Fork a copy for each request; in a copy, run its module."""
    module, *sources = sys.argv[1:]
    server = socket_at_stdin()
    os.dup2(0, 2)  # The node does not read it: a full pipe would stop this process.
    # What fails here fails again in each copy, which reports it.
    with suppress(Exception):
        if "reasoning-gym" in sources:
            importlib.import_module("node.tasks.sources.reasoning_gym").import_library()
        if NUMERIC in sources:
            importlib.import_module("node.tasks.sources.jsonl").prepare()
        importlib.import_module(module)
    gc.freeze()  # Collections in a copy write to no shared page.
    if _serve(server):
        importlib.import_module(module).main()
    else:
        os._exit(0)


def _serve(server: socket.socket) -> bool:
    """Return True in a copy, and False when the node has closed its end."""
    copies: dict[int, tuple[int, socket.socket]] = {}  # by descriptor of the process
    while True:
        ready = select.select([server.fileno(), *copies], [], [])[0]
        for descriptor in copies.keys() & ready:
            pid, status = copies.pop(descriptor)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(descriptor)
            with status, suppress(OSError):  # the node may have closed its end
                status.send(_NUMBER.pack(code))
        if server.fileno() not in ready:
            continue
        request, fds, _, _ = socket.recv_fds(server, 1, 3)
        if not request:
            return False
        if not (pid := os.fork()):
            _become_copy(fds, [server, *(status for _, status in copies.values())])
            return True
        for fd in fds[:2]:
            os.close(fd)
        status, descriptor = socket.socket(fileno=fds[2]), os.pidfd_open(pid)
        copies[descriptor] = pid, status
        with suppress(OSError):
            socket.send_fds(status, [_NUMBER.pack(pid)], [descriptor])


def _become_copy(fds: list[int], sockets: list[socket.socket]) -> None:
    """Keep the standard streams that the node has sent, and close every other descriptor."""
    die_with_parent()
    os.setsid()
    os.dup2(fds[0], 0)
    os.dup2(fds[1], 2)
    for sock in sockets:
        sock.detach()  # Closed below. A later use of its number must not be closed with the object.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    main()
