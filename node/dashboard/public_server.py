"""The swarm's public page: its files, HTTP server, snapshot folder, census file."""

from __future__ import annotations

import gzip
import logging
import mimetypes
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from node.dashboard.access import A_SECOND, ListeningSocket, Rate, guarded, out_of_bounds
from node.dashboard.app import STATIC as DASHBOARD
from node.dashboard.rounds import failure, plain
from node.dashboard.server import BoundedConnection, Serving
from node.errors import NodeError
from node.monitor.record import rounded
from node.storage.atomic_files import replacing, write_atomic, write_error, writing
from node.storage.run_folder import PROFILE_KEYS, RunFolder
from protocol.identity import peer_id_of
from protocol.manifest import Manifest
from swarm.census import Author, Census, CensusState, ClaimedProfile, columns, rewards
from swarm.common.counters import Counters
from swarm.transport.transport import host_of

log = logging.getLogger(__name__)

# Figures of the page by the names that the census has for them.
NOW = ("nodes", "bootstrap", "estimated", "connected", "groups_offered", "relayed", "direct")
TOTAL = ("authors", "offered", "checked", "verified", "refused")
LISTED = 500  # maximum authors on the page


@dataclass(frozen=True, slots=True)
class Observed:
    """The facts of a page beyond the census."""

    version: str  # of this program
    time: float  # of the observation, unix seconds
    every: float  # seconds between two observations
    peer_id: str  # of the observer
    kind: str  # "bootstrap" or "observe"
    join: Sequence[str]  # addresses that other nodes can dial
    manifest: Manifest
    swarm_id: bytes


def documents(census: Census, seen: Observed) -> dict[str, Any]:
    """Return the page's three documents by name: swarm, history and authors."""
    buckets, authors = census.state.buckets, census.state.authors
    order = sorted(authors, key=lambda key: (-authors[key].verified, -authors[key].last, key))
    history = columns(buckets)
    history["nodes"] = [rounded(nodes) for nodes in history["nodes"]]
    env_rewards = {env: list(map(rounded, means)) for env, means in rewards(buckets).items()}
    return {
        "swarm": _swarm(census, seen),
        "history": {**history, "rewards": env_rewards},
        "authors": {
            "authors": [_author(key, authors[key]) for key in order[:LISTED]],
            "more": max(0, len(order) - LISTED),
        },
    }


def dialed(addresses: Sequence[str]) -> list[str]:
    """Return the non-loopback addresses, or all if every one is loopback."""

    def is_loopback(address: str) -> bool:
        host = host_of(address)
        return bool(host) and ip_address(host).is_loopback

    return [address for address in addresses if not is_loopback(address)] or list(addresses)


def _swarm(census: Census, seen: Observed) -> dict[str, Any]:
    manifest = seen.manifest
    authors = [census.state.authors.get(author) for author in census.present]
    profiles = [author.profile if author else ClaimedProfile() for author in authors]
    return {
        "version": seen.version,
        "time": seen.time,
        "since": census.state.since,
        "every": seen.every,
        "observer": {"peer_id": seen.peer_id, "kind": seen.kind},
        "swarm": {
            "id": seen.swarm_id.hex(),
            "name": manifest.name,
            "founder": manifest.founder.hex(),
            "created": manifest.created,
            "epoch_seconds": manifest.epoch_seconds,
            "families": [{"name": e.name, "levels": len(e.levels)} for e in manifest.catalogue],
        },
        "join": list(seen.join),
        "now": _picked(census.now, *NOW),
        "total": _picked(census.state.total, *TOTAL),
        "models": _counted("model", [profile.model for profile in profiles]),
        "versions": _counted("version", [profile.version for profile in profiles]),
        "rewards": [
            _picked(estimate, "env", "level", "groups")
            | {name: rounded(getattr(estimate, name)) for name in ("reward", "low", "high")}
            for estimate in census.state.lately.estimates()
        ],
    }


def _picked(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _counted(name: str, values: Sequence[str | None]) -> list[dict[str, Any]]:
    return [{name: value, "nodes": nodes} for value, nodes in Counter(values).most_common()]


def _author(key: str, author: Author) -> dict[str, Any]:
    return {
        "author": key,
        "peer_id": peer_id_of(bytes.fromhex(key)),
        **_picked(author.profile, *PROFILE_KEYS),
        **_picked(author, "first", "last", "policy_step"),
        "bootstrap": not author.offered and not author.policy_step,
        **_picked(author, "link", "offered", "checked", "verified", "refused"),
        "rewards": {env: rounded(mean.value) for env, mean in sorted(author.rewards.items())},
        "days": [
            [day.start, day.offered, day.rewards.groups, rounded(day.rewards.value)]
            for day in author.days
        ],
    }


STATIC = Path(__file__).parent / "public_static"
INDEX = "index.html"
# Files of the dashboard, under ``static/shared/``; the imports between them stay valid.
SHARED = (
    *("chart.js", "format.js", "icon.svg", "parts.js", "style.css", "theme.js"),
    *("vendor/htm-preact.js", "vendor/htm.LICENSE", "vendor/preact.LICENSE"),
    *("vendor/uplot.js", "vendor/uplot.LICENSE"),
)

Page = Mapping[str, bytes]  # contents by path


def unchanging() -> dict[str, bytes]:
    """Return the page's static files; raise OSError if one cannot be read."""
    paths = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*")}
    files = {
        name if name == INDEX else f"static/{name}": path.read_bytes()
        for name, path in paths.items()
        if path.is_file()
    }
    return files | {f"static/shared/{name}": (DASHBOARD / name).read_bytes() for name in SHARED}


def data(documents: Mapping[str, Any]) -> dict[str, bytes]:
    """Encode documents as the JSON files that the page reads."""
    return {f"data/{name}.json": plain(document).encode() for name, document in documents.items()}


LEAST_PACKED = 512  # minimum bytes of a file that is compressed
LEVEL = 6
TEXTS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    packed: bytes | None  # by gzip; None if that saves nothing
    etag: str  # depends only on the body
    media_type: str

    @classmethod
    def of(cls, path: str, body: bytes) -> PageFile:
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
    files = {}
    for name, body in page.items():
        old = before.get(f"/{name}")
        files[f"/{name}"] = old if old and old.body == body else PageFile.of(name, body)
    if (index := files.get(f"/{INDEX}")) is not None:
        files["/"] = index
    return files


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
            await self._answer(scope)(scope, receive, guarded(send))

    def _answer(self, scope: Scope) -> ASGIApp:
        if refusal := out_of_bounds(scope, self._rate):
            return refusal
        file, req_headers = self._answers.get(scope["path"]), Headers(scope=scope)
        if file is None:
            return failure("not found", 404)
        headers = {"etag": file.etag, "vary": "accept-encoding"}
        etags = [each.strip() for each in req_headers.get("if-none-match", "").split(",")]
        if file.etag in etags or "*" in etags:
            return Response(status_code=304, headers=headers)
        body = file.body
        if file.packed is not None and "gzip" in req_headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = file.packed, "gzip"
        # Passed as media_type, it would get a charset.
        return Response(body, headers=headers | {"content-type": file.media_type})


class PageServer:
    """A server of the latest page, until closed.

    Its failures are logged and counted (``public_page_failures``), and do not stop the node.
    """

    def __init__(self, place: ListeningSocket, counters: Counters) -> None:
        self._counters = counters
        rate, connection = (BEHIND_A_PROXY, Proxied) if place.private else (A_SECOND, Reader)
        self._files = Files(Rate(a_second=rate))
        self._serving = Serving(self._files, place, "swarm-page", self._failed, None, connection)

    def show(self, page: Page) -> None:
        self._files.show(page)

    def close(self) -> None:
        """Stop; may be called twice."""
        self._serving.close()

    def _failed(self, error: BaseException) -> None:
        self._counters.add("public_page_failures")
        log.warning("the node continues without the swarm's page: %s", error, exc_info=error)


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
            remedy = "Name a folder from which nothing else is served."
            raise NodeError(f"{_KEY}: there is another page", folder / INDEX, remedy)
        if RunFolder(folder).identity.exists():
            remedy = "Name another folder: everything in this one is public."
            raise NodeError(f"{_KEY}: a node's key is in", folder, remedy)
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
            remedy = "Name a folder that you may write to."
            problem = f"{_KEY}: cannot make the folder ({error.strerror})"
            raise NodeError(problem, folder, remedy) from error


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
        reason = f"it is of swarm {state.swarm[:16]}"
    except FileNotFoundError:
        return CensusState(swarm, now)
    except ValidationError as error:
        reason = f"it is damaged: {error.errors()[0]['msg']}"
    except OSError as error:
        raise write_error(path, error) from error
    with writing(path):
        path.replace(path.with_name(path.name + ASIDE))
    counters.add("census_set_aside")
    log.warning("%s was set aside and starts empty: %s", path, reason)
    return CensusState(swarm, now)


def write_census(path: Path, state: CensusState) -> None:
    write_atomic(path, STATE.dump_json(state), durable=False)
