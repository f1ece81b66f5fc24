"""The swarm's page served to everybody: GET and HEAD of files in memory, and nothing else."""

from __future__ import annotations

import logging
from typing import ClassVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from node.dashboard.connections import Connection
from node.dashboard.guard import Sending, out_of_bounds
from node.dashboard.place import Place
from node.dashboard.rate import A_SECOND, Rate
from node.dashboard.replies import failure
from node.dashboard.serving import Serving
from node.swarm_page.answers import Answer, answers
from node.swarm_page.files import Page
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

BEHIND_A_PROXY = 10 * A_SECOND
"""Requests a second where only this machine is served: all readers come from one address then."""


class Reader(Connection):
    """A connection of somebody who reads the page."""

    most: ClassVar[int] = 512


class Proxied(Reader):
    """A connection where only this machine is served, as by a proxy for all readers."""

    most_of_one: ClassVar[int] = Reader.most


class Files:
    """Answers with what is shown at present, and bounds what it is asked.

    The names that a request may come under are anybody's choice: there is nothing here that only
    some may read, no cookie, and nothing to be changed.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._answers: dict[str, Answer] = {}

    def show(self, page: Page) -> None:
        """Answer with ``page`` from now on; called on any thread."""
        self._answers = answers(page, self._answers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            await self._answer(scope)(scope, receive, Sending(send))

    def _answer(self, scope: Scope) -> Response:
        if refused := out_of_bounds(scope, self._rate):
            return refused
        found = self._answers.get(scope["path"])
        if found is None:
            return failure("there is nothing under that address", 404)
        return _reply(found, Headers(scope=scope))


def _reply(answer: Answer, asked: Headers) -> Response:
    told = {"etag": answer.etag, "vary": "accept-encoding"}
    known = [each.strip() for each in asked.get("if-none-match", "").split(",")]
    if answer.etag in known or "*" in known:
        return Response(status_code=304, headers=told)
    body = answer.body
    if answer.packed is not None and "gzip" in asked.get("accept-encoding", ""):
        body, told["content-encoding"] = answer.packed, "gzip"
    # not as media_type, to which a charset would be added
    return Response(body, headers=told | {"content-type": answer.media_type})


class PageServer:
    """Serves the latest page until it is closed.

    Whatever fails in it is logged and counted (``public_page_failures``), and ends nothing else.

    Args:
        place: where it listens.
    """

    def __init__(self, place: Place, counters: Counters) -> None:
        self._counters = counters
        private = place.private
        self._files = Files(Rate(a_second=BEHIND_A_PROXY if private else A_SECOND))
        connection = Proxied if private else Reader
        self._serving = Serving(
            self._files, place, "swarm-page", self._failed, connection=connection
        )

    def show(self, page: Page) -> None:
        """Answer with ``page`` from now on."""
        self._files.show(page)

    def close(self) -> None:
        """Stop; harmless when called twice."""
        self._serving.close()

    def _failed(self, error: BaseException) -> None:
        self._counters.add("public_page_failures")
        log.warning("serving the swarm's page failed, the node goes on: %s", error, exc_info=error)
