import asyncio
import gzip
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.dashboard import public_server as public
from node.dashboard.access import AT_ONCE, HEADERS, PAUSE_SECONDS, Rate, listen
from node.dashboard.public_server import Page
from node.errors import NodeError
from protocol.identity import Identity
from swarm.common.counters import Counters
from tests.node.dashboard.browser import PATIENCE, closed, get
from tests.node.programs import until
from tests.swarm.census.census_parts import SWARM, Watched, group, key, offer, peer
from tests.swarm.network_parts import manifest


@contextmanager
def shown(page: Page, host: str = "127.0.0.1") -> Iterator[SimpleNamespace]:
    """Serve a page on a free port."""
    counters, place = Counters(), listen(f"{host}:0", "monitor.public")
    server, asked = public.PageServer(place, counters), partial(get, place.port)
    server.show(page)
    with closing(server):
        yield SimpleNamespace(server=server, counters=counters, port=place.port, get=asked)


def seen(watched: Watched) -> public.Observed:
    """Return what a bootstrap node knows in addition to its counts."""
    who = ("12D3me", "bootstrap", ["/ip4/1"])
    return public.Observed("1.0", watched.clock.time(), 10.0, *who, manifest(), SWARM)


def swarm_of(names: list[str]) -> Watched:
    """Return a swarm in which each peer offers two groups, one of them verified."""
    watched = Watched()
    peers = [peer(name, [offer(number)]) for number, name in enumerate(names)]
    watched.look(*peers, refused={(key(names[-1]), "reward_mismatch"): 1})
    watched.look(*peers, arrived=[group(name, 1) for name in names])
    return watched


def page_of(names: list[str]) -> Page:
    watched = swarm_of(names)
    return public.unchanging() | public.data(public.documents(watched.census, seen(watched)))


def test_documents_match_the_census_counts():
    watched = swarm_of(["anna", "ben", "larry"])
    found = public.documents(watched.census, seen(watched))
    swarm, history, authors = found["swarm"], found["history"], found["authors"]
    assert swarm["swarm"]["id"] == SWARM.hex() and swarm["observer"]["kind"] == "bootstrap"
    assert swarm["now"]["nodes"] == 3 and swarm["now"]["bootstrap"] == 0
    groups = {"offered": 6, "checked": 4, "verified": 3, "refused": {"reward_mismatch": 1}}
    assert swarm["total"] == {"authors": 3, **groups}
    assert swarm["models"] == [{"model": None, "nodes": 3}]
    (reward,) = swarm["rewards"]
    assert (reward["env"], reward["groups"], reward["reward"]) == ("sums", 3, 0.5)
    assert {len(column) for name, column in history.items() if name != "rewards"} == {1}
    assert history["nodes"] == [3.0] and history["rewards"] == {"sums": [0.5]}
    (larry,) = [each for each in authors["authors"] if each["author"] == key("larry").hex()]
    assert (larry["checked"], larry["refused"]) == (2, {"reward_mismatch": 1})
    assert larry["days"][0][1:] == [2, 1, 0.5] and authors["more"] == 0


def test_page_lists_the_most_verified_authors():
    watched = swarm_of(["anna"])
    watched.look(*[peer(f"p{number}") for number in range(520)])
    found = public.documents(watched.census, seen(watched))["authors"]
    assert found["authors"][0]["author"] == key("anna").hex()
    assert (len(found["authors"]), found["more"]) == (500, 21)


def test_join_addresses_exclude_loopback_if_possible():
    inside, outside = "/ip4/127.0.0.1/tcp/1/p2p/x", "/ip4/203.0.113.7/tcp/1/p2p/x"
    named = "/dns4/seed.example.org/tcp/1/p2p/x"
    assert public.dialed([inside, outside]) == [outside] and public.dialed([inside]) == [inside]
    assert public.dialed([named, inside]) == [named]


PAGE = page_of(["anna", "ben"])


def test_page_contains_every_referenced_file():
    assert {f"static/shared/{name}" for name in public.SHARED} <= PAGE.keys()
    for name, body in PAGE.items():
        if not name.endswith((".js", ".html")) or "/vendor/" in name:
            continue
        text = body.decode()
        told = re.findall(r"(?:from|import) '(\./[^']+)'", text)
        told += re.findall(r'(?:src|href)="([^"#:{]+)"', text) if name.endswith(".html") else []
        for path in told:
            target = os.path.normpath(Path(name).parent / path).replace(os.sep, "/")
            assert target in PAGE, f"{name} names {path}"


def test_page_uses_only_relative_urls():
    for path in public.STATIC.rglob("*.html"):
        assert not re.search(r'(?:src|href)="(?:/|https?:)', path.read_text())


def test_snapshot_equals_the_served_files(tmp_path):
    snapshot = public.PageWriter(tmp_path / "deep" / "site")
    snapshot.write(PAGE)
    files = [path for path in snapshot.folder.rglob("*") if path.is_file()]
    found = {file.relative_to(snapshot.folder).as_posix(): file.read_bytes() for file in files}
    assert found == dict(PAGE)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX file modes")
def test_web_server_user_can_read_the_snapshot(tmp_path):
    before = os.umask(0o077)
    try:
        snapshot = public.PageWriter(tmp_path / "site")
        snapshot.write(page_of(["anna"]))
    finally:
        os.umask(before)
    for path in snapshot.folder.rglob("*"):
        assert path.stat().st_mode & (stat.S_IROTH if path.is_file() else stat.S_IXOTH)


def test_snapshot_writes_only_changes_and_the_index_last(tmp_path):
    snapshot = public.PageWriter(tmp_path)
    snapshot.write({public.INDEX: b"1", "data/swarm.json": b"1", "static/a.js": b"1"})
    (tmp_path / "static" / "a.js").write_bytes(b"left alone")
    snapshot.write({public.INDEX: b"2", "data/swarm.json": b"2", "static/a.js": b"1"})
    assert (tmp_path / "static" / "a.js").read_bytes() == b"left alone"
    assert (tmp_path / "data" / "swarm.json").read_bytes() == b"2"
    assert not list(tmp_path.rglob("*.tmp"))
    (tmp_path / "data").rename(tmp_path / "away")
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(NodeError, match="data"):
        snapshot.write({public.INDEX: b"3", "data/swarm.json": b"3"})
    assert (tmp_path / public.INDEX).read_bytes() == b"2"


def test_snapshot_refuses_folders_with_another_site_or_a_key(tmp_path):
    for name in ("page", "key"):
        (tmp_path / name).mkdir()
    (tmp_path / "page" / public.INDEX).write_text("my page")
    with pytest.raises(NodeError, match=r"another page.*Name a folder"):
        public.PageWriter(tmp_path / "page")
    with pytest.raises(NodeError, match=r"monitor\.snapshot.*index"):
        public.PageWriter(tmp_path / "page" / public.INDEX)
    Identity.create(tmp_path / "key" / "identity.key")
    with pytest.raises(NodeError, match=r"monitor\.snapshot: a node's key.*Name another folder"):
        public.PageWriter(tmp_path / "key")


def test_census_survives_a_restart(tmp_path):
    watched, counters = swarm_of(["anna", "ben"]), Counters()
    public.write_census(tmp_path / "census.json", watched.state)
    found = public.read_census(tmp_path / "census.json", SWARM.hex(), 0.0, counters)
    assert found == watched.state
    again = Watched(found)
    again.look(peer("anna"))
    assert again.state.total.authors == 2 and counters.snapshot() == {}


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[]", b'{"swarm": 3}', b'{"swarm": "05", "since": "x"}', b"\xff\x00"]
)
def test_damaged_census_is_set_aside_and_replaced(tmp_path, damaged, caplog):
    path, counters = tmp_path / "census.json", Counters()
    path.write_bytes(damaged)
    found = public.read_census(path, SWARM.hex(), 7.0, counters)
    assert (found.since, found.authors) == (7.0, {})
    assert (tmp_path / "census.json.aside").read_bytes() == damaged and not path.exists()
    assert counters.snapshot() == {"census_set_aside": 1} and "starts empty" in caplog.text


def test_the_census_of_another_swarm_is_set_aside(tmp_path):
    path, counters = tmp_path / "census.json", Counters()
    public.write_census(path, swarm_of(["anna"]).state)
    assert public.read_census(path, "06" * 32, 7.0, counters).total.authors == 0
    assert counters.snapshot() == {"census_set_aside": 1}


@pytest.fixture
def site():
    with shown(PAGE) as found:
        yield found


def test_server_sends_files_unchanged_and_data_as_json(site):
    for name, body in PAGE.items():
        answer = site.get(f"/{name}")
        assert (answer.status, answer.body) == (200, body), name
    assert site.get("/").body == PAGE["index.html"]
    for name in ("swarm", "history", "authors"):
        assert isinstance(json.loads(PAGE[f"data/{name}.json"]), dict)


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
def test_response_has_its_content_type(site, path, kind):
    assert site.get(path).headers["content-type"] == kind


@pytest.mark.parametrize("path", ["/", "/data/authors.json", "/nothing", "/static/"])
def test_every_response_has_security_headers(site, path):
    headers = site.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "set-cookie" not in headers and "server" not in headers


def test_server_compresses_large_files_on_request(site):
    packed = site.get("/data/authors.json", {"Accept-Encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert gzip.decompress(packed.body) == PAGE["data/authors.json"]
    assert "content-encoding" not in site.get("/data/authors.json").headers


def test_known_etag_returns_not_modified(site):
    first = site.get("/data/swarm.json")
    assert first.headers["cache-control"] == "no-cache"
    again = site.get("/data/swarm.json", {"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status, again.body) == (304, b"")
    site.server.show({**PAGE, "data/swarm.json": b"{}"})
    news = site.get("/data/swarm.json", {"If-None-Match": first.headers["etag"]})
    assert (news.status, news.body) == (200, b"{}")


@pytest.mark.parametrize("host", ["seed.example.org", "mallory.example:1", "10.0.0.5", "x" * 300])
def test_public_page_accepts_any_host_and_origin(site, host):
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
def test_server_rejects_path_traversal(site, path):
    assert site.get(path).status in (400, 404)


def test_server_rejects_long_urls_and_other_methods(site):
    assert site.get("/" + "a" * 600).status == 414 and site.get("/?" + "a" * 3000).status == 414
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        answer = site.get("/", method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    head = site.get("/data/authors.json", method="HEAD")
    assert (head.status, head.body) == (200, b"")


def test_server_rejects_a_request_with_a_body(site):
    with closing(socket.create_connection(("127.0.0.1", site.port), 30)) as bare:
        bare.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        answer = b"".join(iter(lambda: bare.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_server_survives_bad_requests(site):
    for told in (b"\x16\x03\x01\x00", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9000 + b"\r\n"):
        with closing(socket.create_connection(("127.0.0.1", site.port), 30)) as bare:
            bare.sendall(told)
    assert site.get("/").status == 200


def status_of(files: public.Files, client: str) -> int:
    """Return the status for a client, without a slow real connection."""
    told = []

    async def send(message):
        told.extend([message["status"]] if message["type"] == "http.response.start" else [])

    async def receive():
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b""}
    asyncio.run(files({**scope, "headers": [], "client": (client, 1)}, receive, send))
    return told[0]


def test_rate_limit_applies_per_client(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    files = public.Files(Rate(lambda: 0.0))
    files.show(PAGE)
    assert [status_of(files, "flo") for _ in range(AT_ONCE + 1)] == [200] * AT_ONCE + [429]
    assert status_of(files, "anna") == 200
    assert waits == [PAUSE_SECONDS]


def test_proxied_clients_are_not_limited_as_one(site):
    assert {site.get("/").status for _ in range(2 * AT_ONCE)} == {200}
    assert public.Proxied.most_of_one == public.Proxied.most > public.Reader.most_of_one


def test_server_limits_connections_per_client():
    with shown(PAGE, "0.0.0.0") as site, ExitStack() as stack:
        connect = partial(socket.create_connection, ("127.0.0.1", site.port), 30)
        flo = [stack.enter_context(connect()) for _ in range(200)]
        most = public.Reader.most_of_one
        until(lambda: sum(not closed(bare) for bare in flo) <= most, PATIENCE)
        stack.close()
        assert site.counters.snapshot() == {}
