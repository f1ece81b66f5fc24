"""Publication of the swarm's page: HTTP server, snapshot folder, census file.

The server answers only GET and HEAD, from files in memory.
"""

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

from node.dashboard.access import A_SECOND, ListeningSocket, Rate, Sending, out_of_bounds
from node.dashboard.public_documents import INDEX, Page
from node.dashboard.rounds import failure
from node.dashboard.server import BoundedConnection, Serving
from node.errors import NodeError
from node.storage.atomic_files import replacing, write_atomic, write_error
from node.storage.run_folder import RunFolder
from swarm.census import CensusState
from swarm.common.counters import Counters

LEAST_PACKED = 512  # minimum bytes of a file that is compressed
LEVEL = 6
TEXTS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, ready to send."""

    body: bytes
    packed: bytes | None  # by gzip; None if that saves nothing
    etag: str  # depends only on the body
    media_type: str

    @classmethod
    def of(cls, path: str, body: bytes) -> PageFile:
        """Compress and label a file."""
        packed = gzip.compress(body, LEVEL, mtime=0) if len(body) >= LEAST_PACKED else body
        etag = f'W/"{sha256(body).hexdigest()[:32]}"'
        return cls(body, packed if len(packed) < len(body) else None, etag, media_type(path))


def media_type(path: str) -> str:
    """Return a path's media type by its ending, independent of the system's types."""
    ending = path[path.rfind(".") :]
    if ending in TEXTS:
        return f"{TEXTS[ending]}; charset=utf-8"
    return mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"


def answers(page: Page, before: dict[str, PageFile]) -> dict[str, PageFile]:
    """Return the files by request path; unchanged files are reused from ``before``."""
    found = {}
    for name, body in page.items():
        old = before.get(f"/{name}")
        found[f"/{name}"] = old if old and old.body == body else PageFile.of(name, body)
    if (index := found.get(f"/{INDEX}")) is not None:
        found["/"] = index
    return found


log = logging.getLogger(__name__)

# Requests per second if only this machine is served: all readers then share the proxy's address.
BEHIND_A_PROXY = 10 * A_SECOND


class Reader(BoundedConnection):
    """A connection of a reader of the page."""

    most: ClassVar[int] = 512


class Proxied(Reader):
    """A connection if only this machine is served, as by a proxy for all readers."""

    most_of_one: ClassVar[int] = Reader.most


class Files:
    """An application that serves the current page within a rate limit.

    Any host name is accepted: there are no private data, no cookies and nothing to change.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._answers: dict[str, PageFile] = {}

    def show(self, page: Page) -> None:
        """Serve ``page`` from now on; may be called on any thread."""
        self._answers = answers(page, self._answers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope)(scope, receive, Sending(send))

    def _answer(self, scope: Scope) -> Response:
        if refused := out_of_bounds(scope, self._rate):
            return refused
        file, asked = self._answers.get(scope["path"]), Headers(scope=scope)
        if file is None:
            return failure("there is nothing under that address", 404)
        headers = {"etag": file.etag, "vary": "accept-encoding"}
        known = [each.strip() for each in asked.get("if-none-match", "").split(",")]
        if file.etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        body = file.body
        if file.packed is not None and "gzip" in asked.get("accept-encoding", ""):
            body, headers["content-encoding"] = file.packed, "gzip"
        # Passed as media_type, it would get a charset.
        return Response(body, headers=headers | {"content-type": file.media_type})


class PageServer:
    """A server of the latest page, until closed.

    Its failures are logged and counted (``public_page_failures``), and do not stop the node.
    """

    def __init__(self, place: ListeningSocket, counters: Counters) -> None:
        self._counters = counters
        private = place.private
        self._files = Files(Rate(a_second=BEHIND_A_PROXY if private else A_SECOND))
        connection = Proxied if private else Reader
        self._serving = Serving(
            self._files, place, "swarm-page", self._failed, connection=connection
        )

    def show(self, page: Page) -> None:
        """Serve ``page`` from now on."""
        self._files.show(page)

    def close(self) -> None:
        """Stop; may be called twice."""
        self._serving.close()

    def _failed(self, error: BaseException) -> None:
        self._counters.add("public_page_failures")
        log.warning("serving the swarm's page failed, the node goes on: %s", error, exc_info=error)


FILE, FOLDER = 0o644, 0o755  # another user serves the files
_KEY = "monitor.snapshot"


class PageWriter:
    """A folder, created if missing, that receives each version of the page.

    Each file is replaced in one step; the index, which refers to the others, is last. Raises
    NodeError if the folder is not writable, or holds another site or a node's key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[str, bytes] = {}
        if (folder / INDEX).exists() and not (folder / "data" / "swarm.json").exists():
            remedy = "Name a folder that nothing else is served from."
            raise NodeError(f"{_KEY}: there is another page", folder / INDEX, remedy)
        if RunFolder(folder).identity.exists():
            remedy = "Name another folder: what is in this one is served to everybody."
            raise NodeError(f"{_KEY}: a node's key lies in", folder, remedy)
        self._make(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            remedy = "Change its owner, or name another folder."
            raise NodeError(f"{_KEY}: cannot write to", folder, remedy)

    def write(self, page: Page) -> None:
        """Write the files that have changed; on a NodeError the old content stays."""
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
    """Read the census of a swarm (id in hex), or start one at unix time ``now``.

    A damaged file, or one of another swarm, is renamed, logged and counted (``census_set_aside``).
    Raises NodeError if the file cannot be read or renamed.
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
    """Write the census; on a :class:`NodeError` the old file stays."""
    write_atomic(path, STATE.dump_json(state), durable=False)
