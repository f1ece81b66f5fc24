import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.end_to_end.commands import Command
from tests.node.dashboard.browser import get

SHOWN = "dashboard: http://127.0.0.1:"


def test_dashboard_reports_an_occupied_port(terminal, node):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        output = terminal.fails(1, "dashboard", "--config", "node", "--address", address)
    assert f"{address}. Stop the program that uses that port" in output
    assert SHOWN not in terminal.out


@pytest.mark.parametrize("address", ["here", "127.0.0.1:many", "127.0.0.1:70000", ":"])
def test_bad_address_is_rejected(terminal, node, address):
    assert "host:port" in terminal.fails(2, "dashboard", "--config", "node", "--address", address)


@pytest.mark.parametrize("place", ["nowhere", "nowhere/node.toml", "empty"])
def test_dashboard_rejects_a_folder_without_node(terminal, place):
    Path("empty").mkdir()
    assert terminal("dashboard", "--config", place) != 0
    assert place in terminal.err and "swarm-node init" in terminal.err
    assert not Path("nowhere").exists()


@pytest.mark.processes
def test_dashboard_shows_a_node_that_never_ran(node):
    before = sorted(node.root.iterdir())
    command = ("dashboard", "--address", "127.0.0.1:0", "--config", "node")
    with Command(node.root.parent, *command) as page:
        page.until(lambda: any(line.startswith(SHOWN) for line in page.out))
        (line,) = (line for line in page.out if line.startswith(SHOWN))
        port = int(line.rstrip("/").rpartition(":")[2])
        assert get(port, "/api/v1/status").json["state"] == "none"
        assert get(port, "/api/v1/rounds").json["count"] == 0
        assert get(port, "/api/v1/ask").status == 403
        assert page.stop(signal.SIGINT) == 0
    assert sorted(node.root.iterdir()) == before
