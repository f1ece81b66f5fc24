"""Mallory has a page, a name server and a network of his own, and reads nothing."""

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
"""Within which a connection has ended that is let go after a fifth of a second."""

STATUS = "/api/v1/status"
EVERYWHERE = "0.0.0.0:0"


@pytest.fixture
def site(tmp_path):
    with served(tmp_path) as found:
        yield found


def test_mallorys_name_that_leads_here_is_not_answered_to(site):
    """DNS rebinding: the browser takes his page and this node for one site."""
    for host in ("mallory.example", f"mallory.example:{site.port}", "localhost.mallory.example"):
        answer = site.get(STATUS, {"Host": host, "Origin": f"http://{host}"})
        assert answer.status == 403 and "name" in answer.json["error"]


OURS = ("127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:8710")
OTHERS = ("", "127.0.0.1:x", "127.0.0.1@mallory.example", "127.0.0.1, mallory.example")
OTHERS += ("10.0.0.5", "[::1")


@pytest.mark.parametrize("host", [*OURS, *OTHERS])
def test_names_of_this_machine_are_answered_to_and_no_other_host(site, host):
    assert site.get(STATUS, {"Host": host}).status == (200 if host in OURS else 403)


def test_two_hosts_or_none_are_refused(site):
    for hosts in (b"", b"Host: 127.0.0.1\r\nHost: mallory.example\r\n"):
        with closing(site.connect()) as bare:
            bare.sendall(b"GET /api/v1/status HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
            assert read(bare).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))


def read(bare: socket.socket) -> bytes:
    parts = []
    while part := bare.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("origin", ["http://mallory", "null", "http://127.0.0.1:1", "file://"])
def test_mallorys_page_reads_nothing(site, origin):
    answer = site.get(STATUS, {"Origin": origin})
    assert answer.status == 403 and "other sites" in answer.json["error"]
    assert "access-control-allow-origin" not in answer.headers


def test_our_own_page_reads_all_and_a_link_from_elsewhere_leads_here(site):
    ours = {"Origin": f"http://127.0.0.1:{site.port}", "Sec-Fetch-Site": "same-origin"}
    followed = {"Site": "cross-site", "Mode": "navigate", "Dest": "document"}
    for headers in (ours, {f"Sec-Fetch-{name}": value for name, value in followed.items()}):
        assert site.get(STATUS, headers).status == 200


@pytest.mark.parametrize("how", ["no-cors", "cors", "navigate"])
def test_mallorys_page_takes_no_answer_in_as_a_script_a_picture_or_a_frame(site, how):
    fetched = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": how, "Sec-Fetch-Dest": "iframe"}
    assert site.get(STATUS, fetched).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_can_be_changed(site, method):
    answer = site.get(STATUS, method=method)
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD"
    head = site.get(STATUS, method="HEAD")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("body", ["Transfer-Encoding: chunked", "Content-Length: 1000000000"])
def test_a_request_with_a_body_is_refused_and_its_connection_closed(site, body):
    """The server would parse it to its end, however long."""
    with closing(site.connect()) as bare:
        bare.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{body}\r\n\r\n".encode())
        assert read(bare).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", [STATUS, "/nothing", "/static/nothing", "/metrics", "/"])
def test_every_answer_forbids_what_a_page_does_not_need(site, path):
    answer = site.get(path)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_websocket_is_no_more_than_a_request_and_the_server_goes_on(site):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert site.get("/api/v1/events/socket", upgrade).status == 404
    assert site.get("/", upgrade).headers["content-type"].startswith("text/html")
    assert site.get(STATUS).status == 200


def test_flo_asks_without_end_and_is_told_to_wait(tmp_path, monkeypatch):
    # On a clock that stands still: a busy machine asks no faster than anybody may.
    monkeypatch.setattr(access_module, "Rate", lambda: Rate(lambda: 0.0))
    monkeypatch.setattr(access_module, "PAUSE_SECONDS", 0.0)
    with served(tmp_path) as site:
        answers = [site.get("/nothing").status for _ in range(AT_ONCE + 5)]
    assert answers == [404] * AT_ONCE + [429] * 5


def test_requests_come_at_an_even_rate_of_ones_choice_and_few_clients_are_remembered():
    now = [0.0]
    rate = Rate(lambda: now[0])
    assert [rate.allows("flo") for _ in range(AT_ONCE + 1)] == [True] * AT_ONCE + [False]
    assert rate.allows("anna"), "another client"
    now[0] += 0.1
    assert [rate.allows("flo") for _ in range(5)] == [True] * 4 + [False]
    for number in range(2 * CLIENTS):
        rate.allows(str(number))
    assert rate.allows("flo"), "forgotten, and so a new one"
    slow = Rate(lambda: now[0], a_second=1.0)
    assert [slow.allows("flo") for _ in range(7)] == [True] * 6 + [False]
    now[0] += 1.0
    assert [slow.allows("flo") for _ in range(2)] == [True, False]


def test_flo_who_sends_half_a_request_is_let_go(site, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    with closing(site.connect()) as silent, closing(site.connect()) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert closed(silent, LET_GO_SECONDS) and closed(slow, LET_GO_SECONDS)


def test_flo_who_reads_nothing_of_long_answers_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    write_rounds(RunFolder(tmp_path), range(1, 501), reward_own=lambda n: n / 7)
    asked = b"GET /api/v1/rounds HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with served(tmp_path) as site, closing(site.connect(receive=4096)) as flo:
        flo.sendall(100 * asked)
        late = time.monotonic() + LET_GO_SECONDS
        looks = [True]
        while any(looks) and time.monotonic() < late:
            time.sleep(0.05)
            # one look may miss what is opened or closed beside it
            looks = [holds(site, flo) for _ in range(3)]
        assert not any(looks)
        assert site.get(STATUS).status == 200


def holds(site: Site, client: socket.socket) -> bool:
    """Whether the server's end of a connection is open."""
    port = client.getsockname()[1]
    found = psutil.Process().net_connections("tcp")
    return any(each.laddr.port == site.port and each.raddr[1:] == (port,) for each in found)


def test_on_an_address_of_others_nobody_is_served_without_the_token(tmp_path):
    with served(tmp_path, EVERYWHERE) as site:
        for path in ("/", "/api/v1/events", "/metrics", "/static/app.js", "/?token=guessed"):
            assert site.get(path).status == 401
        for headers in ({}, {"Cookie": f"{COOKIE}=guessed"}):
            assert site.get(STATUS, headers).status == 401
        assert site.get(STATUS, {"Cookie": "=;;,\x7f=\x01"}).status in (400, 401)


def enter(site: Site, url: str) -> Answer:
    return site.get("/" + url.partition("/?")[2].join(["?", ""]))


def test_the_token_opens_once_and_becomes_a_cookie_that_only_this_site_gets(tmp_path):
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
        assert len(site.told) == 2 and site.told[1] != url, "the next one is told"
        assert enter(site, site.told[1]).status == 303


def test_the_cookie_is_found_among_others_and_hostile_ones_are_not_parsed(tmp_path):
    with served(tmp_path, EVERYWHERE) as site:
        ours = enter(site, site.told[0]).headers["set-cookie"].split("; ")[0]
        for cookies in (ours, f"a=b; {ours};c", f"=;;;{ours}"):
            assert site.get(STATUS, {"Cookie": cookies}).status == 200
        quoted = f'{COOKIE}="' + "\\134" * 3000 + '"'
        for cookies in (quoted, f"{ours}0", f"x{ours}", "a; =; ;", f"{COOKIE}=\xe9"):
            assert site.get(STATUS, {"Cookie": cookies}).status == 401


def test_the_page_never_tells_the_token(tmp_path):
    folder = RunFolder(tmp_path).create()
    with folder.locked():
        secret = "http://10.0.0.5:8710/?token=secret"
        folder.write_status({"state": "running", "pid": folder.holder(), "dashboard": secret})
        with served(tmp_path) as site:
            assert site.json(STATUS)["dashboard"] == "http://10.0.0.5:8710/"


def test_a_token_of_another_kind_of_text_is_none():
    told = []
    entry = EntryToken(told.append)
    for guess in ("", "é", told[0][:-1], told[0] + "x", told[0].upper()):
        assert entry.exchange(guess) is None and not entry.admits(guess)
    assert entry.exchange(told[0]) is not None


def test_where_others_are_served_any_address_is_a_host_and_a_name_only_if_it_was_asked_for():
    hosts = Hosts("node.example", private=False)
    assert all(hosts.known(each) for each in ("node.example:8710", "10.0.0.5", "[2001:db8::1]:1"))
    assert not hosts.known("mallory.example") and not hosts.known("localhost")
    assert not Hosts("0.0.0.0", private=True).known("0.0.0.0")


def test_what_fails_in_a_view_is_an_answer_and_the_server_goes_on(tmp_path, monkeypatch):
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
