"""The dashboard's routes: page, JSON, event stream, questions and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from node.config.config import Config
from node.dashboard.groups import MAX_GROUPS, Wanted
from node.dashboard.rounds import QueryError, Rounds, failure, levels, number, reply, text, updates
from node.dashboard.run_view import MOST_LINES, Feed, RunView
from node.errors import NodeError
from node.monitor.groups import ORIGINS
from node.monitor.sinks import exposition
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.util import import_path, in_words
from swarm.journal import JournalError

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
LineQueue = asyncio.Queue[bytes | None]  # None follows the last line


class CannotAskError(Exception):
    """A question that cannot be asked now: the reason, and the HTTP ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class Asking:
    """A starter of answering processes, which end when their reader leaves.

    It changes nothing in the run folder. It counts failures (``dashboard_ask_failures``). If not
    ``private``, other machines are served, and a token has admitted the client.
    """

    folder: RunFolder
    config: Config
    counters: Counters
    private: bool

    def __post_init__(self) -> None:
        self._begun: deque[float] = deque(maxlen=MOST_BEGUN)
        self._starting = False
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    def check_own_page(self, headers: Headers) -> None:
        """Raise CannotAskError unless the request comes from this server's own page.

        On loopback, browsers send the site that a request comes from. On other addresses they may
        not, but there the cookie is restricted to this site.
        """
        name, value = ASKED_BY
        site = headers.get("sec-fetch-site", "" if self.private else "same-origin")
        if site != "same-origin" or headers.get(name) != value:
            raise CannotAskError(403, "questions are accepted only from this node's own page")

    async def begin(
        self, question: str | None, family: str | None, base: bool
    ) -> AsyncIterator[bytes]:
        """Start a process; stream its lines of JSON, or raise CannotAskError if it cannot."""
        self._check_room()
        payload = {
            "folder": str(self.folder.root.absolute()),
            "config": self.config.model_dump(mode="json"),
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
        lines: LineQueue = asyncio.Queue()
        request = json.dumps(payload).encode() + b"\n"
        self._work = task = asyncio.create_task(self._follow(process, request, lines))
        if self._closed:
            task.cancel()
        return _answer_lines(task, lines)

    async def close(self) -> None:
        """End the current answer; call on the loop that serves it."""
        self._closed = True
        if self._work:
            self._work.cancel()
            await asyncio.wait({self._work})

    def _check_room(self) -> None:
        if self._closed:
            raise CannotAskError(503, "this node is stopping")
        if not (self.folder.manifest.exists() and Checkpoints(self.folder.checkpoints).steps()):
            message = (
                "there is no checkpoint of the policy yet: the node writes the first one after "
                f"{self.config.schedule.checkpoint_every} rounds, or when it stops"
            )
            raise CannotAskError(409, message)
        if self._starting or (self._work and not self._work.done()):
            message = "another question is running: wait for its answer"
            raise CannotAskError(409, message)
        if len(self._begun) == MOST_BEGUN and time.monotonic() - self._begun[0] < BEGUN_SECONDS:
            raise CannotAskError(429, "too many questions: retry in a minute")

    async def _follow(self, process: Process, request: bytes, lines: LineQueue) -> None:
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
                    raise ValueError(f"it ended before it was done: {in_words(status)}")
        except (ValueError, KeyError) as error:
            self._failed(str(error))
            lines.put_nowait(_error(f"the answering process failed: {error}"))
        except TimeoutError:
            reason = f"not done after {SECONDS:g} seconds"
            lines.put_nowait(_error(f"{reason}: swarm-node ask, in a terminal, has no such limit"))
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
            lines.put_nowait(None)

    def _failed(self, reason: str) -> None:
        self.counters.add("dashboard_ask_failures")
        log.warning("a question from the dashboard was not answered: %s", reason)


async def _answer_lines(work: asyncio.Task[None], lines: LineQueue) -> AsyncIterator[bytes]:
    try:
        while (line := await lines.get()) is not None:
            yield line
    finally:
        work.cancel()


def _error(message: str) -> bytes:
    return json.dumps({"event": "error", "error": message}).encode() + b"\n"


STATIC = Path(__file__).parent / "static"
POINTS, MOST_POINTS = 1000, 4000
LINES = "application/x-ndjson"
LARGEST = 2**53
MOST_QUESTION = 1000  # characters
AT_ONCE = 2  # responses computed in parallel; the node needs the rest of the machine


class EventStream(StreamingResponse):
    """Server-sent events, of which the first is computed; closes their source at the end."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events
        # A proxy such as nginx would hold back events until its buffer is full.
        headers = {"x-accel-buffering": "no"}
        super().__init__(self._parts(first), headers=headers, media_type="text/event-stream")

    async def _parts(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        async for event in self._events:
            yield event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


class Routes:
    """The handlers of the dashboard's paths."""

    def __init__(self, run: RunView, feed: Feed, asking: Asking) -> None:
        self._run = run
        self._feed = feed
        self._asking = asking
        self._limit = CapacityLimiter(AT_ONCE)

    def all(self) -> list[BaseRoute]:
        views: Mapping[str, Callable[[Request], Mapping[str, Any]]] = {
            "status": lambda request: self._run.status(),
            "rounds": lambda request: self._run.rounds(Rounds.table, *_window(request)),
            "groups": lambda request: self._run.groups(_wanted(request)),
            "levels": lambda request: self._run.rounds(levels, *_window(request)),
            "progress": lambda request: self._run.progress(),
            "updates": lambda request: self._run.rounds(updates, *_window(request)),
            "authors": lambda request: self._run.authors(),
            "peers": lambda request: self._run.peers(),
            "health": lambda request: self._run.health(),
            "log": lambda request: self._run.log(
                number(request.query_params, "lines", 200, 1, MOST_LINES)
            ),
        }
        return [
            Route("/", self._page),
            *(Route(f"/api/v1/{name}", self._json(view)) for name, view in views.items()),
            Route("/api/v1/events", self._events),
            Route("/api/v1/ask", self._ask),
            Route("/metrics", self._metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    def _json(self, view: Callable[[Request], Mapping[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                return await to_thread.run_sync(
                    lambda: reply(view(request)), limiter=self._limit, abandon_on_cancel=False
                )
            except QueryError as error:
                return failure(str(error), 400)
            except (NodeError, JournalError) as error:
                return failure(str(error), 503)

        return answer

    async def _events(self, request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        if self._feed.full:
            message = "too many pages of this node are open: close one"
            return failure(message, 503, {"retry-after": "5"})
        last_seen = int(last) if last.isascii() and last.isdecimal() and len(last) <= 16 else None
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        # A page asks for the rounds once the stream is open, so the feed watches the run by then.
        events = self._feed.listen(last_seen)
        try:
            first = await anext(events)
        except (NodeError, JournalError) as error:
            return failure(str(error), 503)
        return EventStream(first, events)

    async def _ask(self, request: Request) -> Response:
        query = request.query_params
        try:
            self._asking.check_own_page(request.headers)
            question = text(query, "question", MOST_QUESTION) if "question" in query else None
            if question is not None and not question.strip():
                raise QueryError("question: write one, or omit it for a random task sample")
            arguments = question, text(query, "family") or None, text(query, "base") == "1"
            if request.method == "HEAD":
                return Response(media_type=LINES)
            return StreamingResponse(await self._asking.begin(*arguments), media_type=LINES)
        except QueryError as error:
            return failure(str(error), 400)
        except CannotAskError as error:
            return failure(str(error), error.status)

    async def _metrics(self, request: Request) -> Response:
        body, media_type = await to_thread.run_sync(
            lambda: exposition(self._run.figures()), limiter=self._limit
        )
        return Response(body, headers={"content-type": media_type})


def application(run: RunView, feed: Feed, asking: Asking) -> Starlette:
    # The system's media types for these endings may be wrong.
    mimetypes.add_type("text/javascript", ".js")
    mimetypes.add_type("text/css", ".css")
    handlers: dict[Any, Any] = {HTTPException: _missing, Exception: _failed}
    return Starlette(routes=Routes(run, feed, asking).all(), exception_handlers=handlers)


def _window(request: Request) -> tuple[int, int]:
    query = request.query_params
    return number(query, "since", 0, 0, LARGEST), number(query, "points", POINTS, 2, MOST_POINTS)


def _wanted(request: Request) -> Wanted:
    query = request.query_params
    origin, taught = text(query, "origin"), text(query, "taught")
    if origin not in ("", *ORIGINS):
        raise QueryError(f"origin: write one of {', '.join(ORIGINS)}")
    if taught not in ("", "0", "1"):
        raise QueryError("taught: write 0 or 1")
    return Wanted(
        limit=number(query, "limit", 20, 1, MAX_GROUPS),
        before=number(query, "before", LARGEST, 0, LARGEST),
        origin=origin,
        env=text(query, "env"),
        author=text(query, "author"),
        text=text(query, "text"),
        taught=None if not taught else taught == "1",
        round=number(query, "round", 0, 1, LARGEST) or None,
    )


async def _missing(request: Request, error: HTTPException) -> Response:
    return failure("not found", error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    return failure("this view failed; the trace is in the node's log", 500)
