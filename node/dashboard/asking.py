"""Questions to the policy from the page: one at a time, each in its own process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import deque
from collections.abc import AsyncIterator

from starlette.datastructures import Headers

from node.config.config import Config
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.util import import_path, in_words

log = logging.getLogger(__name__)

MODULE = "node.evaluation.ask"
SECONDS = 180.0  # timeout of an answer, including loading the model
MOST_BEGUN = 10
BEGUN_SECONDS = 60.0  # window in which MOST_BEGUN questions may start
MOST_BYTES = 1 << 20  # of an answer
MOST_LINE = 256 << 10
# Pages of other sites cannot send this header without a CORS preflight.
ASKED_BY = "x-asked-by", "page"
LAST = ("end", "error")


class CannotAskError(Exception):
    """A question that cannot be asked now: the reason, and the HTTP ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Asking:
    """A starter of answering processes, which end when their reader leaves.

    It changes nothing in the run folder. It counts failures (``dashboard_ask_failures``). If not
    ``private``, other machines are served, and a token has admitted the client.
    """

    def __init__(
        self, folder: RunFolder, config: Config, counters: Counters, *, private: bool
    ) -> None:
        self._folder = folder
        self._config = config
        self._counters = counters
        self._private = private
        self._begun: deque[float] = deque(maxlen=MOST_BEGUN)
        self._starting = False
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    def check_own_page(self, headers: Headers) -> None:
        """Check that the request comes from this server's own page.

        On loopback, browsers send the site that a request comes from. On other addresses they may
        not, but there the cookie is restricted to this site. Raises CannotAskError if the request
        comes from elsewhere.
        """
        name, value = ASKED_BY
        site = headers.get("sec-fetch-site", "" if self._private else "same-origin")
        if site != "same-origin" or headers.get(name) != value:
            message = "only this node's own page may ask: open it, and type the question there"
            raise CannotAskError(403, message)

    async def begin(
        self, question: str | None, family: str | None, base: bool
    ) -> AsyncIterator[bytes]:
        """Start a process and return its answer as lines of JSON; it ends with them.

        Raises CannotAskError if another question is being answered, there were too many, there is
        no checkpoint, the node is stopping, or no process can start.
        """
        self._check_room()
        asked = {
            "folder": str(self._folder.root.absolute()),
            "config": self._config.model_dump(mode="json"),
            "question": question,
            "family": family,
            "base": base,
        }
        self._begun.append(time.monotonic())
        self._starting = True
        try:
            process = await create_subprocess_exec(
                *(sys.executable, "-P", "-m", MODULE),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=MOST_LINE,
                env={**os.environ, "PYTHONPATH": import_path()},
                start_new_session=True,
            )
        except OSError as error:
            self._failed(str(error))
            raise CannotAskError(503, f"no process can be started here: {error}") from error
        finally:
            self._starting = False
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        request = json.dumps(asked).encode() + b"\n"
        self._work = work = asyncio.create_task(self._follow(process, request, lines))
        if self._closed:
            work.cancel()
        return _lines(work, lines)

    async def close(self) -> None:
        """End the current answer; call on the loop that serves it."""
        self._closed = True
        if self._work:
            self._work.cancel()
            await asyncio.wait({self._work})

    def _check_room(self) -> None:
        if self._closed:
            raise CannotAskError(503, "this node is stopping")
        if not (self._folder.manifest.exists() and Checkpoints(self._folder.checkpoints).steps()):
            message = (
                "there is no checkpoint of the policy yet: the node writes the first once "
                f"{self._config.schedule.checkpoint_every} rounds are done, or when it stops"
            )
            raise CannotAskError(409, message)
        if self._starting or (self._work and not self._work.done()):
            message = "another question is being answered: one at a time, or the node would wait"
            raise CannotAskError(409, message)
        if len(self._begun) == MOST_BEGUN and time.monotonic() - self._begun[0] < BEGUN_SECONDS:
            raise CannotAskError(429, "too many questions: ask again in a minute")

    async def _follow(
        self, process: Process, request: bytes, lines: asyncio.Queue[bytes | None]
    ) -> None:
        """Pass on the process's output until it ends or exceeds a limit."""
        assert process.stdin and process.stdout
        size, last = 0, None
        try:
            async with asyncio.timeout(SECONDS):
                process.stdin.write(request)
                while line := await process.stdout.readline():
                    size += len(line)
                    if size > MOST_BYTES:
                        raise ValueError(f"more than {MOST_BYTES} bytes")
                    lines.put_nowait(line)
                    last = json.loads(line)["event"]
                status = await process.wait()
                if last not in LAST:
                    raise ValueError(f"it ended in the middle of it: {in_words(status)}")
        except (ValueError, KeyError) as error:
            self._failed(str(error))
            lines.put_nowait(_error(f"the process that answers failed: {error}"))
        except TimeoutError:
            reason = f"not done after {SECONDS:g} seconds"
            lines.put_nowait(_error(f"{reason}: swarm-node ask, in a terminal, has longer"))
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
            lines.put_nowait(None)

    def _failed(self, why: str) -> None:
        self._counters.add("dashboard_ask_failures")
        log.warning("a question from the dashboard was not answered: %s", why)


async def _lines(
    work: asyncio.Task[None], lines: asyncio.Queue[bytes | None]
) -> AsyncIterator[bytes]:
    try:
        while (line := await lines.get()) is not None:
            yield line
    finally:
        work.cancel()


def _error(message: str) -> bytes:
    return json.dumps({"event": "error", "error": message}).encode() + b"\n"
