"""Everybody may read the page, nobody can do more, and flo keeps nobody from it."""

from __future__ import annotations

import asyncio
import gzip
import socket
from contextlib import closing

import pytest
from starlette.types import Message

from node.dashboard.access import AT_ONCE, HEADERS, Rate
from node.dashboard.public_server import Files, Proxied, Reader
from tests.node.swarm_page.page_parts import Site, page_of, shown

PAGE = page_of(["anna", "ben"])


@pytest.fixture
def site():
    with shown(PAGE) as found:
        yield found


def test_every_file_is_served_as_it_is(site: Site) -> None:
    for name, body in PAGE.items():
        answer = site.get(f"/{name}")
        assert (answer.status, answer.body) == (200, body), name
    assert site.get("/").body == PAGE["index.html"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/data/swarm.json", "application/json"),
        ("/static/shared/format.js", "text/javascript; charset=utf-8"),
        ("/static/shared/style.css", "text/css; charset=utf-8"),
        ("/static/shared/icon.svg", "image/svg+xml"),
    ],
)
def test_what_it_is_stands_in_the_answer(site: Site, path: str, kind: str) -> None:
    assert site.get(path).headers["content-type"] == kind


@pytest.mark.parametrize("path", ["/", "/data/authors.json", "/nothing", "/static/"])
def test_every_answer_forbids_what_a_page_does_not_need(site: Site, path: str) -> None:
    headers = site.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "set-cookie" not in headers and "server" not in headers


def test_what_is_large_is_packed_for_who_takes_it(site: Site) -> None:
    packed = site.get("/data/authors.json", {"Accept-Encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert gzip.decompress(packed.body) == PAGE["data/authors.json"]
    assert "content-encoding" not in site.get("/data/authors.json").headers


def test_what_is_known_already_is_not_sent_again(site: Site) -> None:
    first = site.get("/data/swarm.json")
    assert first.headers["cache-control"] == "no-cache"
    again = site.get("/data/swarm.json", {"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status, again.body) == (304, b"")
    site.server.show({**PAGE, "data/swarm.json": b"{}"})
    news = site.get("/data/swarm.json", {"If-None-Match": first.headers["etag"]})
    assert (news.status, news.body) == (200, b"{}")


@pytest.mark.parametrize("host", ["seed.example.org", "mallory.example:1", "10.0.0.5", "x" * 300])
def test_it_is_read_under_any_name_and_from_any_page(site: Site, host: str) -> None:
    answer = site.get("/data/swarm.json", {"Host": host, "Origin": f"http://{host}"})
    assert answer.status == 200 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/../identity.key",
        "/static/../../../node.toml",
        "/static/%2e%2e/%2e%2e/server.py",
        "//etc/passwd",
        "/static/shared/",
        "/data/swarm.json/",
        "/index.html%00",
        "/%ff%fe",
        "http://mallory.example/",
    ],
)
def test_no_path_leads_out_of_the_page(site: Site, path: str) -> None:
    assert site.get(path).status in (400, 404)


def test_long_addresses_and_other_methods_are_refused(site: Site) -> None:
    assert site.get("/" + "a" * 600).status == 414
    assert site.get("/?" + "a" * 3000).status == 414
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        answer = site.get("/", method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    head = site.get("/data/authors.json", method="HEAD")
    assert (head.status, head.body) == (200, b"")


def test_what_is_no_request_ends_nothing(site: Site) -> None:
    for told in (b"\x16\x03\x01\x00", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9000 + b"\r\n"):
        with closing(socket.create_connection(("127.0.0.1", site.port), 30)) as bare:
            bare.sendall(told)
    assert site.get("/").status == 200


def status_of(files: Files, client: str) -> int:
    """Of what a client is answered, without a connection that would take its time."""
    told: list[int] = []

    async def send(message: Message) -> None:
        told.extend([message["status"]] if message["type"] == "http.response.start" else [])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b""}
    asyncio.run(files({**scope, "headers": [], "client": (client, 1)}, receive, send))
    return told[0]


def test_flo_is_told_to_wait_where_others_are_served() -> None:
    files = Files(Rate(lambda: 0.0))
    files.show(PAGE)
    assert [status_of(files, "flo") for _ in range(AT_ONCE + 1)] == [200] * AT_ONCE + [429]
    assert status_of(files, "anna") == 200


def test_readers_behind_a_proxy_are_not_taken_for_one(site: Site) -> None:
    assert {site.get("/").status for _ in range(2 * AT_ONCE)} == {200}
    assert Proxied.most_of_one == Proxied.most > Reader.most_of_one


def test_a_rate_of_ones_own_choice_is_kept() -> None:
    now = [0.0]
    rate = Rate(lambda: now[0], a_second=1.0)
    assert [rate.allows("flo") for _ in range(7)] == [True] * 6 + [False]
    now[0] += 1.0
    assert [rate.allows("flo") for _ in range(2)] == [True, False]


def test_flo_holds_as_many_connections_as_one_may_and_others_are_served() -> None:
    with shown(PAGE, "0.0.0.0") as site:
        flo = [socket.create_connection(("127.0.0.1", site.port), 30) for _ in range(200)]
        try:
            ended = 0
            for bare in flo:
                bare.settimeout(0.02)
                try:
                    ended += bare.recv(1) == b""
                except TimeoutError:
                    continue
                except ConnectionResetError:
                    ended += 1
            assert 200 - ended <= Reader.most_of_one
        finally:
            for bare in flo:
                bare.close()
        assert site.counters.snapshot() == {}
