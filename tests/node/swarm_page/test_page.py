"""The page's files say what was counted, and all that they name is there."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from node.dashboard.public_documents import INDEX, SHARED, STATIC, dialled, documents
from node.dashboard.public_server import PageWriter, read_census, write_census
from node.errors import NodeError
from protocol.identity import Identity
from swarm.common.counters import Counters
from tests.node.swarm_page.page_parts import page_of, seen, swarm_of
from tests.swarm.census.census_parts import SWARM, Watched, key, peer


def test_the_documents_say_what_was_counted() -> None:
    watched = swarm_of(["anna", "ben", "larry"])
    found = documents(watched.census, seen(watched))
    swarm, history, authors = found["swarm"], found["history"], found["authors"]
    assert swarm["swarm"]["id"] == SWARM.hex() and swarm["observer"]["kind"] == "bootstrap"
    assert swarm["now"]["nodes"] == 3 and swarm["now"]["bootstrap"] == 0
    assert swarm["total"] == {
        "authors": 3,
        "offered": 6,
        "checked": 4,
        "verified": 3,
        "refused": {"reward_mismatch": 1},
    }
    assert swarm["models"] == [{"model": None, "nodes": 3}]
    (reward,) = swarm["rewards"]
    assert (reward["env"], reward["groups"], reward["reward"]) == ("sums", 3, 0.5)
    assert {len(column) for name, column in history.items() if name != "rewards"} == {1}
    assert history["nodes"] == [3.0] and history["rewards"] == {"sums": [0.5]}
    by_key = {each["author"]: each for each in authors["authors"]}
    larry = by_key[key("larry").hex()]
    assert (larry["checked"], larry["refused"]) == (2, {"reward_mismatch": 1})
    assert larry["days"][0][1:] == [2, 1, 0.5] and authors["more"] == 0


def test_of_many_authors_the_most_verified_are_listed() -> None:
    watched = swarm_of(["anna"])
    watched.look(*[peer(f"p{number}") for number in range(520)])
    found = documents(watched.census, seen(watched))["authors"]
    assert found["authors"][0]["author"] == key("anna").hex()
    assert (len(found["authors"]), found["more"]) == (500, 21)


def test_whoever_joins_is_told_addresses_that_lead_here_from_elsewhere() -> None:
    inside, outside = "/ip4/127.0.0.1/tcp/1/p2p/x", "/ip4/203.0.113.7/tcp/1/p2p/x"
    assert dialled([inside, outside]) == [outside]
    assert dialled([inside]) == [inside]
    assert dialled(["/dns4/seed.example.org/tcp/1/p2p/x", inside]) == [
        "/dns4/seed.example.org/tcp/1/p2p/x"
    ]


def test_every_file_that_a_file_of_the_page_names_is_in_it() -> None:
    page = page_of(["anna"])
    assert {f"static/shared/{name}" for name in SHARED} <= page.keys()
    for name, body in page.items():
        if not name.endswith((".js", ".html")) or "/vendor/" in name:
            continue
        text = body.decode()
        told = re.findall(r"(?:from|import) '(\./[^']+)'", text)
        told += re.findall(r'(?:src|href)="([^"#:{]+)"', text) if name.endswith(".html") else []
        for path in told:
            meant = os.path.normpath(Path(name).parent / path).replace(os.sep, "/")
            assert meant in page, f"{name} names {path}"


def test_all_addresses_of_the_page_are_relative() -> None:
    for path in STATIC.rglob("*.html"):
        assert not re.search(r'(?:src|href)="(?:/|https?:)', path.read_text())


def test_a_snapshot_holds_what_is_served_byte_for_byte(tmp_path: Path) -> None:
    page = page_of(["anna", "ben"])
    snapshot = PageWriter(tmp_path / "deep" / "site")
    snapshot.write(page)
    found = {
        path.relative_to(snapshot.folder).as_posix(): path.read_bytes()
        for path in snapshot.folder.rglob("*")
        if path.is_file()
    }
    assert found == dict(page)


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_a_snapshot_can_be_read_by_the_user_of_a_web_server(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        snapshot = PageWriter(tmp_path / "site")
        snapshot.write(page_of(["anna"]))
    finally:
        os.umask(before)
    for path in snapshot.folder.rglob("*"):
        assert path.stat().st_mode & (stat.S_IROTH if path.is_file() else stat.S_IXOTH)


def test_a_snapshot_writes_again_what_has_changed_and_names_it_last(tmp_path: Path) -> None:
    snapshot = PageWriter(tmp_path)
    snapshot.write({INDEX: b"1", "data/swarm.json": b"1", "static/a.js": b"1"})
    (tmp_path / "static" / "a.js").write_bytes(b"left alone")
    snapshot.write({INDEX: b"2", "data/swarm.json": b"2", "static/a.js": b"1"})
    assert (tmp_path / "static" / "a.js").read_bytes() == b"left alone"
    assert (tmp_path / "data" / "swarm.json").read_bytes() == b"2"
    assert not list(tmp_path.rglob("*.tmp"))
    (tmp_path / "data").rename(tmp_path / "away")
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(NodeError, match="data"):
        snapshot.write({INDEX: b"3", "data/swarm.json": b"3"})
    assert (tmp_path / INDEX).read_bytes() == b"2"


def test_a_snapshot_takes_the_place_of_no_other_site(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("my page")
    with pytest.raises(NodeError, match=r"another page.*Name a folder"):
        PageWriter(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(NodeError, match=r"monitor\.snapshot.*file"):
        PageWriter(file)


def test_a_snapshot_is_not_written_beside_a_nodes_key(tmp_path: Path) -> None:
    Identity.create(tmp_path / "identity.key")
    with pytest.raises(NodeError, match=r"monitor\.snapshot: a node's key.*Name another folder"):
        PageWriter(tmp_path)


def test_a_census_goes_on_after_a_restart(tmp_path: Path) -> None:
    watched, counters = swarm_of(["anna", "ben"]), Counters()
    write_census(tmp_path / "census.json", watched.state)
    found = read_census(tmp_path / "census.json", SWARM.hex(), 0.0, counters)
    assert found == watched.state
    again = Watched(found)
    again.look(peer("anna"))
    assert again.state.total.authors == 2 and counters.snapshot() == {}


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[]", b'{"swarm": 3}', b'{"swarm": "05", "since": "x"}', b"\xff\x00"]
)
def test_a_damaged_census_is_set_aside_and_begun_anew(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path, counters = tmp_path / "census.json", Counters()
    path.write_bytes(damaged)
    found = read_census(path, SWARM.hex(), 7.0, counters)
    assert (found.since, found.authors) == (7.0, {})
    assert (tmp_path / "census.json.aside").read_bytes() == damaged and not path.exists()
    assert counters.snapshot() == {"census_set_aside": 1}
    assert "begun anew" in caplog.text


def test_the_census_of_another_swarm_is_set_aside(tmp_path: Path) -> None:
    path, counters = tmp_path / "census.json", Counters()
    write_census(path, swarm_of(["anna"]).state)
    assert read_census(path, "06" * 32, 7.0, counters).total.authors == 0
    assert counters.snapshot() == {"census_set_aside": 1}


def test_the_page_is_json_that_anybody_can_read() -> None:
    page = page_of(["anna"])
    for name in ("swarm", "history", "authors"):
        assert isinstance(json.loads(page[f"data/{name}.json"]), dict)
