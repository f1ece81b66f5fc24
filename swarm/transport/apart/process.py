"""Starting the network's process, and ending it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys

from swarm.common.util import import_path, in_words
from swarm.transport.apart.link import Link, LinkLost, Methods
from swarm.transport.transport import TransportError

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "swarm.transport.apart.child")
CLOSE_SECONDS = 10.0
EXIT_SECONDS = 5.0


class Process:
    """One running child.

    Attributes:
        link: to call it.
    """

    def __init__(self, child: asyncio.subprocess.Process, link: Link) -> None:
        self.link = link
        self._child = child
        self._running = asyncio.ensure_future(link.run())
        self._complaints = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, methods: Methods) -> Process:
        """Start one, which may call ``methods``."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = await asyncio.create_subprocess_exec(
                    *COMMAND,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    # It has no work for the threads of libraries that it happens to load.
                    env={**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"},
                    start_new_session=True,
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        return cls(child, Link(reader, writer, methods))

    async def ended(self) -> str:
        """Return when it is gone, with how."""
        await asyncio.shield(self._running)
        return f"ended with {in_words(await self._exit())}"

    async def stop(self) -> None:
        """Let it close its daemon and end, by force if need be."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.link.call("close")
        except (TimeoutError, LinkLost, TransportError) as error:
            logger.warning("the network's process did not close: %s", error or "no answer")
        self.link.close()
        await self._exit()
        await self._running

    async def _exit(self) -> int:
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._child.wait()
        except TimeoutError:
            logger.warning("the network's process does not end; killing it")
            self._child.kill()
        status = await self._child.wait()
        await self._complaints
        return status

    async def _listen(self) -> None:
        """Log what it prints, which is what no logger was given."""
        assert self._child.stderr is not None
        while True:
            try:
                line = await self._child.stderr.readline()
            except ValueError:
                line = b"a line that is too long to be shown\n"
            if not line:
                return
            logger.warning("the network's process says: %s", line.decode(errors="replace").rstrip())
