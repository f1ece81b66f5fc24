"""Who is met, as a table of any width shows it, and one of them in full."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from node.monitor.output import printable
from node.monitor.record import lapse, short_ids
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.node.conftest import Terminal

OURS = "ab" * 32


def identity(name: str) -> Identity:
    return Identity.from_seed(name.encode().ljust(32, b"."))


def peer(whose: str, /, **changes: Any) -> dict[str, Any]:
    return {
        "peer_id": identity(whose).peer_id,
        "connected": True,
        "link": "direct",
        "round_trip_s": 0.0123,
        "clock_ahead_s": -0.25,
        "swarm_id": OURS,
        "policy_step": 4,
        "bytes_in": 2048,
        "bytes_out": 10,
        "admitted": 3,
        "heard": time.time() - 3.0,
        "admitted_at": time.time() - 600.0,
        "bootstrap": False,
        "refused": {"reward_mismatch": 2, "expired": 1},
        "strikes": 2.0,
        "banned": False,
        **changes,
    }


@pytest.fixture
def met(node: RunFolder) -> list[dict[str, Any]]:
    peers = [
        peer("anna"),
        peer("sam", seed=True, admitted=0, admitted_at=None, refused={}),
        peer("mallory", swarm_id="cd" * 32, admitted=0, admitted_at=None),
    ]
    node.write_status({"swarm_id": OURS, "peers": peers, "peer_id": "12D3KooWme"})
    return peers


@pytest.mark.parametrize("width", ["20", "45", "70", "80", "200"])
def test_no_terminal_is_too_narrow_for_a_whole_line_of_whose_it_is(
    terminal: Terminal, met: list, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert terminal("peers", "--config", "node") == 0
    for each, shown in zip(met, short_ids([p["peer_id"] for p in met]), strict=True):
        assert len(shown) == 15
        assert [line for line in terminal.out.splitlines() if f" {shown} " in line]
        assert each["peer_id"] not in terminal.out
    assert all(column in terminal.out for column in ("when", "admitted", "strikes", "refused"))


def test_the_table_says_who_is_a_bootstrap_node_and_when_each_was_heard_and_admitted_last(
    terminal: Terminal, met: list
) -> None:
    assert terminal("peers", "--config", "node") == 0
    anna, sam, mallory = (
        next(line for line in terminal.out.splitlines() if each["peer_id"][:14] in line)
        for each in met
    )
    assert "bootstrap" not in anna and " bootstrap " in sam and " another swarm " in mallory
    assert "s / 10 min" in anna
    assert "s / –" in sam


def test_a_common_swarm_has_a_line_a_peer_in_80_columns(
    terminal: Terminal, node: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    now = time.time()
    peers = [
        peer("sam", seed=True, heard=now, admitted=0, admitted_at=None, refused={}),
        peer("anna", bytes_in=68_400, bytes_out=71_400, heard=now, admitted_at=now, refused={}),
    ]
    node.write_status({"swarm_id": OURS, "peers": peers, "peer_id": "12D3KooWme"})
    assert terminal("peers", "--config", "node") == 0
    lines = terminal.out.splitlines()
    assert len([line for line in lines if line.strip()]) == 2 + len(peers), terminal.out
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("cut", ["peer id", "as the table has it", "author", "whole"])
def test_a_beginning_that_only_one_has_shows_it_in_full(
    terminal: Terminal, met: list, cut: str
) -> None:
    anna = identity("anna")
    shown = short_ids([each["peer_id"] for each in met])[0]
    given = {
        "peer id": shown.rstrip("…"),
        "as the table has it": shown,
        "author": anna.author.hex()[:8],
        "whole": anna.peer_id,
    }[cut]
    assert terminal("peers", given, "--config", "node") == 0
    for expected in (anna.peer_id, anna.author.hex(), "2.0 kB", "reward_mismatch 2", "10 min"):
        assert expected in terminal.out
    told = terminal.json("peers", given, "--config", "node")
    gone = dict.fromkeys(("link", "round_trip_s", "clock_ahead_s"))
    assert told == {**met[0], "connected": False, **gone}


@pytest.mark.parametrize(("given", "said"), [("12D3", "several peers"), ("12D3KooWx0", "no peer")])
def test_a_beginning_of_several_or_of_none_is_refused_and_the_choices_are_named(
    terminal: Terminal, met: list, given: str, said: str
) -> None:
    assert terminal("peers", given, "--config", "node") == 2
    assert said in terminal.err
    assert all(each["peer_id"] in terminal.err for each in met)
    assert len(terminal.err.splitlines()) == 1


def test_a_status_of_an_earlier_release_is_shown_as_far_as_it_goes(
    terminal: Terminal, node: RunFolder
) -> None:
    new = {"heard", "admitted_at", "bootstrap", "swarm_id", "policy_step"}
    told = {key: value for key, value in peer("anna").items() if key not in new}
    node.write_status({"swarm_id": OURS, "peers": [told], "peer_id": "12D3KooWme"})
    assert terminal("peers", "--config", "node") == 0
    assert "– / –" in terminal.out
    assert terminal("peers", "12D3", "--config", "node") == 0


def test_ids_are_cut_where_they_differ_and_no_sooner() -> None:
    assert short_ids(["abcd", "abxy"], 2) == ["abc…", "abx…"]
    assert short_ids(["abcd", "abcd", "bcde"], 2) == ["ab…", "ab…", "bc…"]
    assert short_ids(["ab", "abc"], 2) == ["ab", "abc"]
    assert short_ids(["abc"], 3) == ["abc"]
    assert short_ids([]) == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (86400, "24 h"), (2e5, "2 days")],
)
def test_a_span_of_time_is_told_in_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert lapse(seconds) == shown


def test_a_peer_is_shown_as_it_is_connected_while_the_node_runs(
    terminal: Terminal, node: RunFolder
) -> None:
    peers = [peer("anna"), peer("rita", link="relayed"), peer("gus", link=None, connected=False)]
    told = {"swarm_id": OURS, "peers": peers, "peer_id": "12D3KooWme"}
    with node.locked():
        node.write_status({**told, "state": "running", "pid": os.getpid(), "time": time.time()})
        assert terminal("peers", "--config", "node") == 0
        anna, rita, gus = (
            next(line for line in terminal.out.splitlines() if each["peer_id"][:14] in line)
            for each in peers
        )
        assert " relayed " in rita
        assert "relayed" not in anna and "relayed" not in gus
        assert terminal("peers", peers[1]["peer_id"], "--config", "node") == 0
        assert "yes, through a relay" in terminal.out
        assert terminal("peers", peers[0]["peer_id"], "--config", "node") == 0
        assert "yes, directly" in terminal.out
        assert "12.3 ms" in terminal.out
        assert "0.25 s behind, give or take 0.006 s" in terminal.out
    assert terminal("peers", "--config", "node") == 0
    assert "relayed" not in terminal.out, "a node that does not run is connected to nobody"


@pytest.mark.parametrize("width", ["20", "45", "80", "200"])
def test_two_of_one_name_stand_beside_their_ids_on_any_terminal(
    terminal: Terminal, node: RunFolder, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    peers = [peer("anna", name="anna"), peer("mallory", name="anna"), peer("ben", name=None)]
    node.write_status({"swarm_id": OURS, "peers": peers, "peer_id": "12D3KooWme"})
    assert terminal("peers", "--config", "node") == 0
    shown = short_ids([each["peer_id"] for each in peers])
    for at, beginning in enumerate(shown):
        (line,) = [line for line in terminal.out.splitlines() if f" {beginning} " in f" {line} "]
        assert (" anna " in line) == (at < 2)


def test_a_name_is_cut_in_the_table_and_whole_with_the_line_where_one_is_shown(
    terminal: Terminal, node: RunFolder
) -> None:
    told = {"name": "安" * 40, "line": "Two old laptops.", "model": "tiny", "version": "0.1.0"}
    peers = [peer("anna", **told), peer("ben")]
    node.write_status({"swarm_id": OURS, "peers": peers, "peer_id": "12D3KooWme"})
    assert terminal("peers", "--config", "node") == 0
    assert "安" * 7 in terminal.out and "安" * 8 not in terminal.out
    assert "Two old laptops" not in terminal.out
    assert terminal("peers", peers[0]["peer_id"], "--config", "node") == 0
    lines = dict(line.split(maxsplit=2)[1:] for line in terminal.out.splitlines() if "its " in line)
    assert lines == told
    assert terminal("peers", peers[1]["peer_id"], "--config", "node") == 0
    assert "its " not in terminal.out


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;owned\x07",
        "one\ntwo",
        "\u202eanna",
        "[link=https://x]anna[/]",
        "\u2066a\u2069",
        "\t",
    ],
)
def test_a_name_that_no_peer_could_tell_does_nothing_in_the_table_either(
    terminal: Terminal, node: RunFolder, text: str
) -> None:
    hostile = dict.fromkeys(("name", "line", "model", "version"), text)
    peers = [peer("anna", name="anna"), peer("eve", **hostile)]
    node.write_status({"swarm_id": OURS, "peers": peers, "peer_id": "12D3KooWme"})
    for arguments in ([], [peers[1]["peer_id"]]):
        assert terminal("peers", *arguments, "--config", "node") == 0
        assert all(c.isprintable() or c == "\n" for c in terminal.out)
        (line,) = [line for line in terminal.out.splitlines() if peers[1]["peer_id"][:14] in line]
        assert arguments or printable(text)[:12] in line.partition("…")[2]
    assert terminal.json("peers", "--config", "node")[1]["name"] == text
