import json
import os
import resource
import threading
import time
from contextlib import closing

import pytest

from node.dashboard.access import PORT, listen
from node.dashboard.run_view import STREAMS, RunView
from node.dashboard.server import MOST_OF_ONE
from node.errors import NodeError
from node.storage.run_folder import RunFolder, present_status
from tests.node.dashboard.browser import PATIENCE, closed, record, served, told, write_rounds
from tests.node.programs import until


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, range(1, 31), reward_local=lambda n: n / 100)
    return folder


@pytest.fixture
def site(folder):
    with served(folder.root) as running:
        yield running


def test_status_api_matches_the_command_and_has_a_version(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_status({"state": "running", "pid": os.getpid(), "time": 1.0, "peers": []})
    shown, state = told(tmp_path, "status"), present_status(folder)
    assert shown.pop("version") is not None and shown.pop("age_s") >= state.pop("age_s") - 60
    assert shown == state and shown["state"] == "crashed", "no process holds the folder"


def test_server_handles_a_folder_without_a_run(tmp_path):
    with served(tmp_path / "nothing") as site:
        assert site.json("/api/v1/status")["state"] == "none"
        table = site.json("/api/v1/rounds")
        assert (table["first"], table["last"], table["count"]) == (0, 0, 0)
        assert site.get("/metrics").status == 200
    assert not (tmp_path / "nothing").exists(), "the server creates no folder"


def test_rounds_api_returns_columns_and_metrics_the_latest(site):
    table = site.json("/api/v1/rounds?since=20")
    assert (table["first"], table["last"], table["count"]) == (21, 30, 10)
    columns = table["columns"]
    assert columns["round"] == list(range(21, 31))
    assert columns["reward_local"] == [n / 100 for n in range(21, 31)]
    assert set(columns["seconds"]) == set(record(1).seconds)
    answer = site.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert b"\nswarm_node_round 30.0\n" in answer.body


def test_metrics_of_a_node_without_rounds_use_its_status(tmp_path):
    folder = RunFolder(tmp_path)
    swarms = [{"swarm_id": swarm} for swarm in ("ours", "ours", "theirs", None)]
    status = {"state": "running", "pid": os.getpid(), "time": 5.0, "swarm_id": "ours"}
    with served(tmp_path) as site, folder.locked():
        folder.write_status({**status, "peers": swarms})
        site.counters.add("refused", 2, reason="replay")
        site.counters.add("dht_calls_refused", 3)
        text = site.get("/metrics").body.decode()
        folder.write_status({**status, "peers": swarms, "pid": 1})
        assert "swarm_node_peers" not in site.get("/metrics").body.decode(), "another process"
    for line in (
        "swarm_node_time 5.0",
        "swarm_node_peers 2.0",
        "swarm_node_foreign_peers 1.0",
        'swarm_node_refused_total{reason="replay"} 2.0',
        'swarm_node_events_total{event="dht_calls_refused"} 3.0',
    ):
        assert f"\n{line}\n" in text
    assert "swarm_node_rss_mb" in text and "swarm_node_round" not in text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/api/v1/nothing", 404),
        ("/static/../server.py", 404),
        ("/static/%2e%2e/server.py", 404),
        ("/static/..%2f..%2f..%2fidentity.key", 404),
        ("//etc/passwd", 404),
        ("/api/v1/rounds?points=many", 400),
        ("/api/v1/rounds?since=" + "9" * 40, 400),
        ("/api/v1/rounds?x=" + "x" * 4000, 414),
        *(
            (f"/api/v1/groups?{query}", 400)
            for query in ("origin=everything", "taught=perhaps", "limit=x", "text=" + 300 * "x")
        ),
    ],
)
def test_server_explains_missing_paths_and_bad_queries(tmp_path, path, status):
    with served(tmp_path) as site:
        answer = site.get(path)
    assert answer.status == status and answer.json["error"]


def test_event_stream_replays_missed_rounds_and_sends_end(folder):
    with served(folder.root) as site:
        stream = site.stream()
        assert stream.next()[0] == "status" and stream.buffering == "no"
        site.json("/api/v1/rounds")
        write_rounds(folder, [31, 32])
        assert [stream.until("round")["round"] for _ in range(2)] == [31, 32]
        with closing(site.stream(last=29)) as again:
            assert [again.until("round")["round"] for _ in range(3)] == [30, 31, 32]
    with closing(stream):
        assert stream.until("gone") == {}


def test_event_stream_opens_only_once_it_watches_the_run(folder, monkeypatch):
    """The page requests rounds after the stream opens, so no round may be missed."""
    begin, calls = RunView.first_events, []

    def slow(run, last, first):
        time.sleep(0.2)
        calls.append(last)
        return begin(run, last, first)

    monkeypatch.setattr(RunView, "first_events", slow)
    with served(folder.root) as site, closing(site.stream()):
        assert calls == [None], "the stream was open before it watched the run"


def test_server_stops_with_open_unread_streams(folder):
    with served(folder.root) as site:
        opened = [open() for open in (site.stream, site.connect) for _ in range(5)]
    assert "dashboard" not in {thread.name for thread in threading.enumerate()}
    assert not site.counters.snapshot()
    for each in opened:
        each.close()


def test_server_limits_the_number_of_streams(site):
    streams = [site.stream() for _ in range(STREAMS)]
    for stream in streams:
        assert stream.next()[0] == "status"
    with closing(site.stream()) as extra:
        assert extra.status == 503
    streams.pop().close()
    while (stream := site.stream()).status != 200:
        stream.close()
    for each in (*streams, stream):
        each.close()


@pytest.fixture
def many_open_files():
    """Raise the limit of open files, often 1024, for both ends of 1000 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_server_limits_a_client_with_1000_connections(many_open_files, site):
    clients = [site.connect() for _ in range(1000)]
    until(lambda: 0 < sum(not closed(each) for each in clients) <= MOST_OF_ONE, PATIENCE)
    for each in clients[: MOST_OF_ONE // 2]:
        each.close()
    assert site.json("/api/v1/rounds")["count"] == 30
    for each in clients:
        each.close()


def test_listen_skips_used_ports_but_rejects_a_named_one():
    with closing(listen(True).socket) as first, closing(listen(True).socket) as second:
        ports = first.getsockname()[1], second.getsockname()[1]
        assert PORT <= ports[0] < ports[1]
        with pytest.raises(NodeError, match=r"cannot serve the dashboard .*choose another"):
            listen(f"127.0.0.1:{ports[0]}")
    with pytest.raises(NodeError, match=r"monitor\.dashboard = 192\.0\.2\.1:8710"):
        listen("192.0.2.1:8710")


def test_nan_and_infinity_become_null(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, [1])
    odd = {"round": 2, "loss": float("nan"), "entropy": float("inf"), "levels": {"sums/0": None}}
    line = json.loads(folder.metrics.read_text()) | odd
    folder.metrics.write_text(json.dumps(line) + "\n")
    columns = told(tmp_path, "rounds")["columns"]
    assert columns["loss"] == [None] and columns["entropy"] == [None]
