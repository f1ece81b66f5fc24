"""The swarm's page served to everybody: GET and HEAD of files in memory, and nothing else."""

from __future__ import annotations

import gzip
import logging
import mimetypes
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from node.dashboard.access import A_SECOND, Place, Rate, Sending, out_of_bounds
from node.dashboard.public_documents import INDEX, Page
from node.dashboard.rounds import failure
from node.dashboard.server import Connection, Serving
from node.errors import NodeError
from node.storage.atomic_files import replacing, write_atomic, write_error
from node.storage.run_folder import RunFolder
from swarm.census.census import CensusState
from swarm.common.counters import Counters

LEAST_PACKED = 512
"""Bytes from which a file is packed."""
LEVEL = 6
TEXTS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One file.

    Attributes:
        body: as it is.
        packed: by gzip; None where that saves nothing.
        etag: the same as long as the body is.
    """

    body: bytes
    packed: bytes | None
    etag: str
    media_type: str

    @classmethod
    def of(cls, path: str, body: bytes) -> Answer:
        """Made ready."""
        packed = gzip.compress(body, LEVEL, mtime=0) if len(body) >= LEAST_PACKED else body
        etag = f'W/"{sha256(body).hexdigest()[:32]}"'
        return cls(body, packed if len(packed) < len(body) else None, etag, media_type(path))


def media_type(path: str) -> str:
    """By the ending of a path, whatever the system says of it."""
    ending = path[path.rfind(".") :]
    if ending in TEXTS:
        return f"{TEXTS[ending]}; charset=utf-8"
    return mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"


def answers(page: Page, before: dict[str, Answer]) -> dict[str, Answer]:
    """By the path that is asked for; what is as it was before is not made anew."""
    found = {}
    for name, body in page.items():
        old = before.get(f"/{name}")
        found[f"/{name}"] = old if old and old.body == body else Answer.of(name, body)
    if (index := found.get(f"/{INDEX}")) is not None:
        found["/"] = index
    return found


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


FILE, FOLDER = 0o644, 0o755
"""Whoever serves them is another user."""
_KEY = "monitor.snapshot"


class Snapshot:
    """Writes a page again and again, each file in one step, what names the others last.

    Args:
        folder: is made where it is missing.

    Raises:
        NodeError: it cannot be written to, or holds another site or a node's key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[str, bytes] = {}
        if (folder / INDEX).exists() and not (folder / "data" / "swarm.json").exists():
            raise NodeError(
                f"{_KEY}: there is another page",
                folder / INDEX,
                "Name a folder that nothing else is served from.",
            )
        if RunFolder(folder).identity.exists():
            raise NodeError(
                f"{_KEY}: a node's key lies in",
                folder,
                "Name another folder: what is in this one is served to everybody.",
            )
        self._make(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise NodeError(
                f"{_KEY}: cannot write to", folder, "Change its owner, or name another folder."
            )

    def write(self, page: Page) -> None:
        """Write what has changed since the last time.

        Raises:
            NodeError: something cannot be written; what was there before still is.
        """
        for name in sorted(page, key=lambda each: (each == INDEX, each)):
            if self._written.get(name) == page[name]:
                continue
            path = self.folder / name
            self._make(path.parent)
            with replacing(path, durable=False) as draft:
                draft.write(page[name])
                draft.flush()
                Path(draft.name).chmod(FILE)
            self._written[name] = page[name]

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        if folder != self.folder:
            self._make(folder.parent)
        try:
            folder.mkdir(parents=True)
            folder.chmod(FOLDER)
        except OSError as error:
            if folder != self.folder:
                raise write_error(folder, error) from error
            remedy = "Name a folder in a place that is yours."
            why = f"{_KEY}: cannot make the folder ({error.strerror})"
            raise NodeError(why, folder, remedy) from error


STATE = TypeAdapter(CensusState)
ASIDE = ".aside"


def read_census(path: Path, swarm: str, now: float, counters: Counters) -> CensusState:
    """What was counted of a swarm until now; a new beginning where nothing was.

    What is damaged, or of another swarm, is set aside under another name, said in the log and
    counted (``census_set_aside``).

    Args:
        swarm: id in hex.
        now: unix time, seconds.

    Raises:
        NodeError: the file cannot be read or set aside.
    """
    try:
        state = STATE.validate_json(path.read_bytes())
        if state.swarm == swarm:
            return state
        why = f"it is of swarm {state.swarm[:16]}"
    except FileNotFoundError:
        return CensusState(swarm, now)
    except ValidationError as error:
        why = f"it is damaged: {error.errors()[0]['msg']}"
    except OSError as error:
        raise write_error(path, error) from error
    try:
        path.replace(path.with_name(path.name + ASIDE))
    except OSError as error:
        raise write_error(path, error) from error
    counters.add("census_set_aside")
    log.warning("%s is set aside and begun anew: %s", path, why)
    return CensusState(swarm, now)


def write_census(path: Path, state: CensusState) -> None:
    """Keep what was counted.

    Raises:
        NodeError: it cannot be written; what was there before still is.
    """
    write_atomic(path, STATE.dump_json(state), durable=False)
