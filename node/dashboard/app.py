"""The dashboard's routes: page, JSON, event stream, questions and metrics."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from node.dashboard.asking import Asking, CannotAskError
from node.dashboard.groups import MAX_GROUPS, Wanted
from node.dashboard.rounds import QueryError, Rounds, failure, number, reply, text
from node.dashboard.run_view import MOST_LINES, Feed, RunView, levels, updates
from node.errors import NodeError
from node.monitor.groups import ORIGINS
from node.monitor.sinks import exposition
from swarm.journal import JournalError

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
POINTS, MOST_POINTS = 1000, 4000
LINES = "application/x-ndjson"
LARGEST = 2**53
MOST_QUESTION = 1000  # characters
AT_ONCE = 2  # responses computed in parallel; the node needs the rest of the machine


class Routes:
    """The handlers of the dashboard's paths; questions require ``asking``."""

    def __init__(self, run: RunView, feed: Feed, asking: Asking | None) -> None:
        self._run = run
        self._feed = feed
        self._asking = asking
        self._limit = CapacityLimiter(AT_ONCE)

    def all(self) -> list[BaseRoute]:
        """Return the routes in order of precedence."""
        views: Mapping[str, Callable[[Request], Mapping[str, Any]]] = {
            "status": lambda request: self._run.status(),
            "rounds": lambda request: self._run.rounds(Rounds.table, *_window(request)),
            "groups": lambda request: self._run.groups(_wanted(request)),
            "levels": lambda request: self._run.rounds(levels, *_window(request)),
            "updates": lambda request: self._run.rounds(updates, *_window(request)),
            "authors": lambda request: self._run.authors(),
            "peers": lambda request: self._run.peers(),
            "health": lambda request: self._run.health(),
            "log": lambda request: self._run.log(_lines(request)),
        }
        return [
            Route("/", self._page),
            *(Route(f"/api/v1/{name}", self._json(view)) for name, view in views.items()),
            Route("/api/v1/events", self._events),
            *([Route("/api/v1/ask", self._ask)] if self._asking else []),
            Route("/metrics", self._metrics),
            *([Mount("/static", StaticFiles(directory=STATIC))] if STATIC.is_dir() else []),
        ]

    async def _page(self, request: Request) -> Response:
        page = STATIC / "index.html"
        if not page.is_file():
            return failure("the page is not installed; the JSON behind it is at /api/v1/", 404)
        return FileResponse(page, media_type="text/html; charset=utf-8")

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
            message = "as many pages as this node tells of its rounds are open: close one"
            return failure(message, 503, {"retry-after": "5"})
        known = int(last) if last.isascii() and last.isdecimal() and len(last) <= 16 else None
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        events = self._feed.listen(known)
        # A page asks for the rounds once the stream is open, so the feed watches the run by then.
        first = await anext(events)

        async def stream() -> AsyncIterator[bytes]:
            yield first
            async for event in events:
                yield event

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _ask(self, request: Request) -> Response:
        assert self._asking
        query = request.query_params
        try:
            self._asking.check_own_page(request.headers)
            question = text(query, "question", MOST_QUESTION) if "question" in query else None
            if question is not None and not question.strip():
                raise QueryError("question: write one, or leave it out to have one drawn")
            wanted = question, text(query, "family") or None, text(query, "base") == "1"
            if request.method == "HEAD":
                return Response(media_type=LINES)
            return StreamingResponse(await self._asking.begin(*wanted), media_type=LINES)
        except QueryError as error:
            return failure(str(error), 400)
        except CannotAskError as error:
            return failure(str(error), error.status)

    async def _metrics(self, request: Request) -> Response:
        body, kind = await to_thread.run_sync(
            lambda: exposition(self._run.record()), limiter=self._limit
        )
        return Response(body, headers={"content-type": kind})


def application(run: RunView, feed: Feed, asking: Asking | None = None) -> Starlette:
    """Build the dashboard's application, without its guard."""
    # The system's media types for these endings may be wrong.
    mimetypes.add_type("text/javascript", ".js")
    mimetypes.add_type("text/css", ".css")
    handlers: dict[Any, Any] = {HTTPException: _missing, Exception: _failed}
    return Starlette(routes=Routes(run, feed, asking).all(), exception_handlers=handlers)


def _window(request: Request) -> tuple[int, int]:
    query = request.query_params
    since = number(query, "since", 0, 0, LARGEST)
    return since, number(query, "points", POINTS, 2, MOST_POINTS)


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


def _lines(request: Request) -> int:
    return number(request.query_params, "lines", 200, 1, MOST_LINES)


async def _missing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return failure("there is nothing under that address", status)


async def _failed(request: Request, error: Exception) -> Response:
    return failure("this view failed; the trace is in the node's log", 500)
