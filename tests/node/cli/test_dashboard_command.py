"""The page of a folder whose node does not work, where something is not as it should be."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.storage.run_folder import RunFolder
from tests.end_to_end.commands import Command
from tests.node.conftest import Terminal
from tests.node.dashboard.browser import write_rounds

SHOWN = "look at it in a browser: http://"


@contextmanager
def shown(folder: Path) -> Iterator[str]:
    """The command in a process of its own, and the host and port that it says."""
    told = Command(folder, "dashboard", "--address", "127.0.0.1:0", "--config", "node")
    with closing(told):
        told.until(lambda: any(line.startswith(SHOWN) for line in told.out))
        (line,) = (line for line in told.out if line.startswith(SHOWN))
        yield line.removeprefix(SHOWN).rstrip("/")
        assert told.stop(signal.SIGINT) == 0


def asked(place: str, path: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection(place, timeout=30)) as connection:
        connection.request("GET", f"/api/v1/{path}")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_a_port_that_is_taken_is_said_with_what_to_do(terminal: Terminal, node: RunFolder) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert terminal("dashboard", "--config", "node", "--address", address) == 1
    assert f"{address}. Stop what holds that port, or name another one" in terminal.err
    assert SHOWN not in terminal.out


@pytest.mark.parametrize("address", ["here", "127.0.0.1:many", "127.0.0.1:70000", ":"])
def test_what_is_no_address_is_said(terminal: Terminal, node: RunFolder, address: str) -> None:
    assert "host:port" in terminal.fails(2, "dashboard", "--config", "node", "--address", address)


@pytest.mark.parametrize("place", ["nowhere", "nowhere/node.toml", "empty"])
def test_a_folder_that_is_none_of_a_node_is_said(terminal: Terminal, place: str) -> None:
    Path("empty").mkdir()
    assert terminal("dashboard", "--config", place) != 0
    assert place in terminal.err and "swarm-node init" in terminal.err
    assert not Path("nowhere").exists()


@pytest.mark.processes
def test_a_folder_in_which_no_node_has_run_yet_is_shown_as_that(node: RunFolder) -> None:
    before = sorted(node.root.iterdir())
    with shown(node.root.parent) as place:
        assert asked(place, "status")[1]["state"] == "none"
        assert asked(place, "rounds")[1]["count"] == 0 and asked(place, "ask")[0] == 403
    assert sorted(node.root.iterdir()) == before


@pytest.mark.processes
def test_a_journal_of_another_layout_leaves_all_views_but_that_of_authors(node):
    write_rounds(node, range(1, 6))
    with closing(sqlite3.connect(node.journal)) as old:
        old.execute("PRAGMA user_version=3")
    with shown(node.root.parent) as place:
        status, told = asked(place, "authors")
        assert status == 503 and "layout 3" in told["error"]
        assert asked(place, "rounds")[1]["last"] == 5
        assert asked(place, "updates")[0] == asked(place, "health")[0] == 200


@pytest.mark.processes
def test_a_history_with_gaps_is_shown_as_far_as_it_goes(node: RunFolder) -> None:
    write_rounds(node, [1, 2, 9, 10, 40])
    with node.metrics.open("ab") as file:
        file.write(b'\x00\xff{"round": 41, "policy_st\n')
    write_rounds(node, [55])
    with shown(node.root.parent) as place:
        table = asked(place, "rounds")[1]
        assert table["columns"]["round"] == [1, 2, 9, 10, 40, 55]
        assert (table["first"], table["last"]) == (1, 55)
        assert asked(place, "updates?since=10")[1]["rounds"] == [40, 55]
