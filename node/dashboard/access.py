"""Access control of web pages: address, token, host names and rate limits."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.config.schema import host_and_port
from node.dashboard.rounds import failure
from node.errors import NodeError
from swarm.common.fair_limits import holder_of

COOKIE = "swarm_node_dashboard"  # and the port: several dashboards may have one host
BYTES = 32


class EntryToken:
    """A one-time token and the session cookie that it is exchanged for.

    Each exchange creates the next token and passes it to ``tell``, so the operator can find it.
    Browsers send a cookie to all ports of a host, so it admits only the client that received it.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._key = secrets.token_bytes(BYTES)
        self._lock = threading.Lock()
        self._token = secrets.token_urlsafe(BYTES)
        tell(self._token)

    def exchange(self, token: str, client: str) -> str | None:
        """Return the session cookie's value for the current token, which is then invalid."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = secrets.token_urlsafe(BYTES)
            self._tell(self._token)
        return self._session(client)

    def admits(self, cookie: str, client: str) -> bool:
        return hmac.compare_digest(cookie.encode(), self._session(client).encode())

    def _session(self, client: str) -> str:
        return hmac.digest(self._key, client.encode(), "sha256").hex()


HOST, PORT = "127.0.0.1", 8710
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # wildcard addresses, and an address of each
PORTS = 100  # ports to try if none is configured
BACKLOG = 128
KEY = "monitor.dashboard"


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    socket: socket.socket
    host: str  # the configured name or address
    port: int  # the actual port
    private: bool  # whether only this machine can reach it

    @property
    def url(self) -> str:
        host = ANY.get(self.host, self.host)
        url_host = f"[{host}]" if ":" in host else host
        return f"http://{url_host}:{self.port}/"


def listen(wanted: bool | str, key: str = KEY) -> ListeningSocket:
    """Listen on the configured place; True means loopback and the next free port.

    Raises ConfigError if ``wanted`` is not ``host:port``, and NodeError if the port is taken, or
    the address does not belong to this machine.
    """
    if isinstance(wanted, str):
        return _listening(*host_and_port(key, wanted), key)
    for port in range(PORT, PORT + PORTS - 1):
        with suppress(NodeError):
            return _listening(HOST, port, key)
    return _listening(HOST, PORT + PORTS - 1, key)


def _listening(host: str, port: int, key: str) -> ListeningSocket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as cleanup:
            sock = cleanup.enter_context(socket.socket(family, kind))
            if os.name == "posix":  # on Windows it could take a port in use
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            cleanup.pop_all()
    except OSError as error:
        text, advice = "the swarm's page", "or 0 for any that is free."
        if key == KEY:
            text, advice = "the dashboard", "or true for the next that is free."
        text = f"cannot serve {text} ({error.strerror or error})"
        remedy = f"Stop the program that uses that port, or choose another port, {advice}"
        raise NodeError(text, f"{key} = {host}:{port}", remedy) from error
    address, port, *_ = sock.getsockname()
    return ListeningSocket(sock, host, port, ipaddress.ip_address(address).is_loopback)


_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::(\d{1,5}))?")
LOCAL = "localhost"


class Hosts:
    """The host names that the ``Host`` header may have, against DNS rebinding.

    Allowed are the configured name, IP addresses (no name server can redirect them) and, if
    private, ``localhost``. If private, an address must be a loopback address.
    """

    def __init__(self, host: str, *, private: bool) -> None:
        self._private = private
        self._names = {host.lower()} - ANY.keys()
        if private:
            self._names.add(LOCAL)

    def known(self, header: str) -> bool:
        match = _HOST.fullmatch(header)
        if not match:
            return False
        host = (match[1] or match[2]).lower()
        if host in self._names:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback or not self._private
        except ValueError:
            return False

    def same(self, origin: str, header: str) -> bool:
        """Whether the origin has the same host and port as the header."""
        return origin.lower() in (f"http://{header.lower()}", f"https://{header.lower()}")


AT_ONCE = 240  # requests in a burst at the default rate
A_SECOND = 40.0  # requests per second
CLIENTS = 1024  # clients remembered; beyond that, the longest idle one is forgotten


@dataclass(eq=False)
class Rate:
    """A token bucket of requests per client; a burst may have six times ``a_second``."""

    now: Callable[[], float] = time.monotonic
    a_second: float = A_SECOND

    def __post_init__(self) -> None:
        self._burst = self.a_second * AT_ONCE / A_SECOND
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Whether a client may make one more request now; counts the request."""
        now = self.now()
        tokens, last = self._left.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - last) * self.a_second)
        allowed = tokens >= 1.0
        self._left[client] = (tokens - allowed, now)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return allowed


PAUSE_SECONDS = 1.0  # before a refusal of a client that is over its rate
MOST_QUERY = 2048
MOST_PATH = 512  # bytes, as MOST_QUERY
CLOSES = {"connection": "close"}
OWN_SITE = ("same-origin", "none")
# Sent with every response.
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


def _client(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


def out_of_bounds(scope: Scope, rate: Rate) -> ASGIApp | None:
    """Refuse a request that is too frequent, too long, has a body, or neither GET nor HEAD.

    The refusal of a frequent one is late, so that a client's connection gets only one per second.
    The server parses a body to its end, so the connection of a refusal that may have one is closed.
    """
    client = _client(scope)
    allowed = rate.allows(holder_of(client) or client)
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return failure("requests have no body here", 413, CLOSES)
    if not allowed:
        retry = {"retry-after": "1", **CLOSES}
        response = failure("too many requests: retry in a second", 429, retry)

        async def refuse_late(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(PAUSE_SECONDS)
            await response(scope, receive, send)

        return refuse_late
    if scope["method"] not in ("GET", "HEAD"):
        return failure("this address is read-only: use GET or HEAD", 405, {"allow": "GET, HEAD"})
    if len(scope["query_string"]) > MOST_QUERY or len(scope["raw_path"]) > MOST_PATH:
        return failure("that address is too long", 414)
    return None


class Guard:
    """Middleware that only admits read requests of this server's own pages.

    It refuses methods other than GET and HEAD, unknown host names, pages of other sites and, with
    an ``entry``, clients without the cookie.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, entry: EntryToken | None) -> None:
        self._app = app
        self._hosts = hosts
        self._entry = entry
        self._rate = Rate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the server closes websockets; there is no other type
        refusal = self._refusal(scope) or self._entrance(scope)
        await (refusal or self._app)(scope, receive, guarded(send))

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if refusal := out_of_bounds(scope, self._rate):
            return refusal
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self._hosts.known(host[0]):
            return failure("this node is not known under that name: use its address", 403)
        # Pages of other sites may only link to this page.
        foreign = any(not self._hosts.same(each, host[0]) for each in headers.getlist("origin"))
        own_site = headers.get("sec-fetch-site", "none") in OWN_SITE
        is_document = headers.get("sec-fetch-dest", "document") == "document"
        is_link = headers.get("sec-fetch-mode") == "navigate" and is_document
        if foreign or not (own_site or is_link):
            return failure("pages of other sites may not read this node", 403)
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        entry, headers, client = self._entry, Headers(scope=scope), _client(scope)
        if entry is None:
            return None
        name = f"{COOKIE}_{scope['server'][1]}"
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and token and scope["method"] == "GET":
            if (session := entry.exchange(token, client)) is None:
                message = (
                    "this token was already used, or is not from this node: run swarm-node "
                    "status on the node's machine for a new address"
                )
                return failure(message, 401)
            redirect = RedirectResponse("/", 303)
            redirect.set_cookie(name, session, httponly=True, samesite="strict", path="/")
            return redirect
        # SimpleCookie takes quadratic time for hostile quotes (CVE-2024-7592).
        pairs = (each.strip().split("=", 1) for each in headers.get("cookie", "").split(";"))
        cookies = dict(pair for pair in pairs if len(pair) == 2)
        if entry.admits(cookies.get(name, ""), client):
            return None
        message = "use the address that swarm-node status prints on the node's machine"
        return failure(message, 401)


def guarded(send: Send) -> Send:
    """Return a ``send`` that adds ``HEADERS`` and cache control to every response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers.update(HEADERS)
            headers["cache-control"] = "no-cache" if "etag" in headers else "no-store"
            message = {**message, "headers": headers.raw}
        await send(message)

    return sending
