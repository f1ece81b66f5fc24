"""The dashboard rejects hostile pages and limits greedy clients."""

import socket
import time
from contextlib import closing

import psutil
import pytest

from node.dashboard import access as access_module
from node.dashboard import server
from node.dashboard.access import AT_ONCE, CLIENTS, COOKIE, HEADERS, EntryToken, Hosts, Rate
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from tests.node.dashboard.browser import Answer, Site, closed, served, write_rounds

LET_GO_SECONDS = 60.0
"""Maximum seconds until the server drops a connection that times out after 0.2 s."""

STATUS = "/api/v1/status"
EVERYWHERE = "0.0.0.0:0"


@pytest.fixture
def site(tmp_path):
    with served(tmp_path) as found:
        yield found


def test_dns_rebinding_request_is_rejected(site):
    """With DNS rebinding the browser treats a hostile page as the node's site."""
    for host in ("mallory.example", f"mallory.example:{site.port}", "localhost.mallory.example"):
        answer = site.get(STATUS, {"Host": host, "Origin": f"http://{host}"})
        assert answer.status == 403 and "name" in answer.json["error"]


OURS = ("127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:8710")
OTHERS = ("", "127.0.0.1:x", "127.0.0.1@mallory.example", "127.0.0.1, mallory.example")
OTHERS += ("10.0.0.5", "[::1")


@pytest.mark.parametrize("host", [*OURS, *OTHERS])
def test_server_accepts_only_local_host_names(site, host):
    assert site.get(STATUS, {"Host": host}).status == (200 if host in OURS else 403)


def test_zero_or_two_hosts_are_refused(site):
    for hosts in (b"", b"Host: 127.0.0.1\r\nHost: mallory.example\r\n"):
        with closing(site.connect()) as bare:
            bare.sendall(b"GET /api/v1/status HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
            assert read(bare).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))


def read(bare: socket.socket) -> bytes:
    return b"".join(iter(lambda: bare.recv(1 << 16), b""))


@pytest.mark.parametrize("origin", ["http://mallory", "null", "http://127.0.0.1:1", "file://"])
def test_foreign_origin_is_rejected(site, origin):
    answer = site.get(STATUS, {"Origin": origin})
    assert answer.status == 403 and "other sites" in answer.json["error"]
    assert "access-control-allow-origin" not in answer.headers


def test_own_page_and_followed_links_are_accepted(site):
    ours = {"Origin": f"http://127.0.0.1:{site.port}", "Sec-Fetch-Site": "same-origin"}
    followed = {"Site": "cross-site", "Mode": "navigate", "Dest": "document"}
    for headers in (ours, {f"Sec-Fetch-{name}": value for name, value in followed.items()}):
        assert site.get(STATUS, headers).status == 200


@pytest.mark.parametrize("how", ["no-cors", "cors", "navigate"])
def test_cross_site_embedding_is_rejected(site, how):
    fetched = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": how, "Sec-Fetch-Dest": "iframe"}
    assert site.get(STATUS, fetched).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_server_is_read_only(site, method):
    answer = site.get(STATUS, method=method)
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD"
    head = site.get(STATUS, method="HEAD")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("body", ["Transfer-Encoding: chunked", "Content-Length: 1000000000"])
def test_request_with_a_body_is_rejected_and_closed(site, body):
    """Otherwise the server would parse a body of any length."""
    with closing(site.connect()) as bare:
        bare.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{body}\r\n\r\n".encode())
        assert read(bare).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", [STATUS, "/nothing", "/static/nothing", "/metrics", "/"])
def test_every_response_has_security_headers(site, path):
    answer = site.get(path)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_websocket_upgrade_is_treated_as_a_plain_request(site):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert site.get("/api/v1/events/socket", upgrade).status == 404
    assert site.get("/", upgrade).headers["content-type"].startswith("text/html")
    assert site.get(STATUS).status == 200


def test_server_limits_the_request_rate(tmp_path, monkeypatch):
    # The clock stands still, because a busy machine may be too slow to exceed the limit.
    monkeypatch.setattr(access_module, "Rate", lambda: Rate(lambda: 0.0))
    monkeypatch.setattr(access_module, "PAUSE_SECONDS", 0.0)
    with served(tmp_path) as site:
        answers = [site.get("/nothing").status for _ in range(AT_ONCE + 5)]
    assert answers == [404] * AT_ONCE + [429] * 5


def test_rate_limit_is_configurable_and_tracks_few_clients():
    now = [0.0]
    rate = Rate(lambda: now[0])
    assert [rate.allows("flo") for _ in range(AT_ONCE + 1)] == [True] * AT_ONCE + [False]
    assert rate.allows("anna"), "another client has its own limit"
    now[0] += 0.1
    assert [rate.allows("flo") for _ in range(5)] == [True] * 4 + [False]
    for number in range(2 * CLIENTS):
        rate.allows(str(number))
    assert rate.allows("flo"), "a forgotten client counts as new"
    slow = Rate(lambda: now[0], a_second=1.0)
    assert [slow.allows("flo") for _ in range(7)] == [True] * 6 + [False]
    now[0] += 1.0
    assert [slow.allows("flo") for _ in range(2)] == [True, False]


def test_partial_request_times_out(site, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    with closing(site.connect()) as silent, closing(site.connect()) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert closed(silent, LET_GO_SECONDS) and closed(slow, LET_GO_SECONDS)


def test_client_that_reads_nothing_is_disconnected(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    write_rounds(RunFolder(tmp_path), range(1, 501), reward_local=lambda n: n / 7)
    request = b"GET /api/v1/rounds HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with served(tmp_path) as site, closing(site.connect(receive=4096)) as flo:
        flo.sendall(100 * request)
        limit = time.monotonic() + LET_GO_SECONDS
        looks = [True]
        while any(looks) and time.monotonic() < limit:
            time.sleep(0.05)
            # One look may miss a connection while others open or close.
            looks = [holds(site, flo) for _ in range(3)]
        assert not any(looks)
        assert site.get(STATUS).status == 200


def holds(site: Site, client: socket.socket) -> bool:
    """Return whether the server's end of a connection is open."""
    port = client.getsockname()[1]
    found = psutil.Process().net_connections("tcp")
    return any(each.laddr.port == site.port and each.raddr[1:] == (port,) for each in found)


def test_public_address_requires_the_token(tmp_path):
    with served(tmp_path, EVERYWHERE) as site:
        for path in ("/", "/api/v1/events", "/metrics", "/static/app.js", "/?token=guessed"):
            assert site.get(path).status == 401
        for headers in ({}, {"Cookie": f"{COOKIE}_{site.port}=guessed"}):
            assert site.get(STATUS, headers).status == 401
        assert site.get(STATUS, {"Cookie": "=;;,\x7f=\x01"}).status in (400, 401)


def enter(site: Site, url: str) -> Answer:
    return site.get("/" + url.partition("/?")[2].join(["?", ""]))


def test_token_works_once_and_sets_a_same_site_cookie(tmp_path):
    with served(tmp_path, EVERYWHERE) as site:
        (url,) = site.told
        assert url.startswith(f"http://127.0.0.1:{site.port}/?token=")
        inside = enter(site, url)
        assert (inside.status, inside.headers["location"]) == (303, "/")
        cookie, *rules = inside.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(rules)
        assert site.get(STATUS, {"Cookie": cookie}).status == 200
        again = enter(site, url)
        assert again.status == 401 and "already used" in again.json["error"]
        assert len(site.told) == 2 and site.told[1] != url, "a new token is announced"
        assert enter(site, site.told[1]).status == 303


def test_server_accepts_its_cookie_and_rejects_hostile_ones(tmp_path):
    with served(tmp_path, EVERYWHERE) as site:
        ours = enter(site, site.told[0]).headers["set-cookie"].split("; ")[0]
        for cookies in (ours, f"a=b; {ours};c", f"=;;;{ours}"):
            assert site.get(STATUS, {"Cookie": cookies}).status == 200
        name = ours.partition("=")[0]
        quoted = f'{name}="' + "\\134" * 3000 + '"'
        for cookies in (quoted, f"{ours}0", f"x{ours}", "a; =; ;", f"{name}=\xe9"):
            assert site.get(STATUS, {"Cookie": cookies}).status == 401


def test_page_never_reveals_the_token(tmp_path):
    folder = RunFolder(tmp_path).create()
    with folder.locked():
        secret = "http://10.0.0.5:8710/?token=secret"
        folder.write_status({"state": "running", "pid": folder.holder(), "dashboard": secret})
        with served(tmp_path) as site:
            assert site.json(STATUS)["dashboard"] == "http://10.0.0.5:8710/"


def test_malformed_token_is_rejected():
    tokens = []
    entry = EntryToken(tokens.append)
    for guess in ("", "é", tokens[0][:-1], tokens[0] + "x", tokens[0].upper()):
        assert entry.exchange(guess, "::1") is None and not entry.admits(guess, "::1")
    session = entry.exchange(tokens[0], "::1")
    assert session and entry.admits(session, "::1") and not entry.admits(session, "192.0.2.7")


def test_public_server_accepts_addresses_and_its_own_name():
    hosts = Hosts("node.example", private=False)
    assert all(hosts.known(each) for each in ("node.example:8710", "10.0.0.5", "[2001:db8::1]:1"))
    assert not hosts.known("mallory.example") and not hosts.known("localhost")
    assert not Hosts("0.0.0.0", private=True).known("0.0.0.0")


def test_server_answers_a_view_error_and_keeps_running(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path).create()
    folder.status.write_text("[")
    with served(tmp_path) as site:
        answer = site.get(STATUS)
        assert answer.status == 503 and "not a status file" in answer.json["error"]
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "read_status", lambda folder: 1 // 0)
            assert site.get(STATUS).status == 500
        folder.status.unlink()
        assert site.get(STATUS).status == 200
    assert site.counters.snapshot() == Counters().snapshot()
