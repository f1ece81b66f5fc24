"""What stands between a browser and the dashboard: who may ask, for what, and how often."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.dashboard.entry import COOKIE, Entry
from node.dashboard.hosts import Hosts
from node.dashboard.rate import Rate
from node.dashboard.replies import failure

MOST_QUERY = 2048
MOST_PATH = 512
"""Bytes."""
OWN_SITE = ("same-origin", "none")
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Of every answer."""


def out_of_bounds(scope: Scope, rate: Rate) -> Response | None:
    """The refusal of what nobody may ask of a page: too often, too long, or to change something."""
    client = scope["client"][0] if scope["client"] else ""
    if not rate.allows(client):
        return failure("too many requests: ask again in a second", 429, {"retry-after": "1"})
    if scope["method"] not in ("GET", "HEAD"):
        allowed = {"allow": "GET, HEAD"}
        return failure("there is nothing to be changed here: only GET and HEAD", 405, allowed)
    if len(scope["query_string"]) > MOST_QUERY or len(scope["raw_path"]) > MOST_PATH:
        return failure("that address is too long", 414)
    return None


class Guard:
    """Lets through what a page of this very server asks for, to be read.

    Methods other than GET and HEAD, names that are not ours, pages of other sites, and, where an
    entry is given, whoever has no cookie are refused with a sentence.

    Args:
        app: what is guarded.
        hosts: names that requests may come under.
        entry: asked for where others than this machine are served.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, entry: Entry | None) -> None:
        self._app = app
        self._hosts = hosts
        self._entry = entry
        self._rate = Rate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # websockets are closed by the server, and there is no other
        guarded = Sending(send)
        refused = self._refusal(scope) or self._entrance(scope)
        await (refused or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        if refused := out_of_bounds(scope, self._rate):
            return refused
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self._hosts.known(host[0]):
            return failure("this node is not known under that name: use its address", 403)
        return self._foreign(headers, host[0])

    def _foreign(self, headers: Headers, host: str) -> Response | None:
        """The refusal of what a page of another site asks for; it may lead here, and no more."""
        origins = headers.getlist("origin")
        if any(not self._hosts.same(origin, host) for origin in origins):
            return failure("pages of other sites may not read this node", 403)
        site = headers.get("sec-fetch-site", "none")
        leads_here = headers.get("sec-fetch-mode") == "navigate" and (
            headers.get("sec-fetch-dest", "document") == "document"
        )
        if site not in OWN_SITE and not leads_here:
            return failure("pages of other sites may not read this node", 403)
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        """The answer to who is not let in, or comes with a token."""
        entry = self._entry
        if entry is None:
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and token and scope["method"] == "GET":
            if (session := entry.exchange(token)) is None:
                return failure(
                    "this token is used up, or none of this node: the address with the next one "
                    "is what swarm-node status says on the node's machine",
                    401,
                )
            inside = RedirectResponse("/", 303)
            inside.set_cookie(COOKIE, session, httponly=True, samesite="strict", path="/")
            return inside
        if entry.admits(_cookie(Headers(scope=scope))):
            return None
        words = "come in by the address that swarm-node status says on the node's machine"
        return failure(words, 401)


class Sending:
    """Adds the headers of every answer."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers[name] = value
            if "etag" not in headers:
                headers["cache-control"] = "no-store"
            else:
                headers["cache-control"] = "no-cache"
            message = {**message, "headers": headers.raw}
        await self._send(message)


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""
