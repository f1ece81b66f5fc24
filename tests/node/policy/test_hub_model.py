"""Commands that use a local hub: one never answers, and one has a model."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from node.policy.model_source import shipped_folder

ROOT = Path(__file__).resolve().parents[3]
MODEL, COMMIT = "somebody/tiny", "c" * 40
FILES = {path.name: path.read_bytes() for path in shipped_folder("tiny").iterdir()}
COPIES = {"pytorch_model.bin": b"the same again", "original/params.json": b"{}"}


class Hub(BaseHTTPRequestHandler):
    """Answers like the hub about one model."""

    protocol_version = "HTTP/1.1"
    gone: ClassVar[set[str]] = set()

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            files = (FILES | COPIES).items()
            told = [{"path": name, "size": len(data), "oid": digest(data)} for name, data in files]
            self.tell([{"type": "file", **each} for each in told])
        elif path.startswith(f"/api/models/{MODEL}"):
            names = [{"rfilename": name} for name in FILES | COPIES]
            self.tell({"id": MODEL, "sha": COMMIT, "siblings": names})
        elif path.startswith(f"/{MODEL}/resolve/"):
            self.serve(path.rpartition("/")[2])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def tell(self, value):
        self.answer(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def serve(self, name):
        if self.command == "GET":
            self.gone.add(name)
        self.answer(FILES[name], {"ETag": f'"{digest(FILES[name])}"', "X-Repo-Commit": COMMIT})

    def answer(self, body, headers):
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        """Keep requests out of standard error."""


def digest(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub():
    Hub.gone = set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def silent():
    """A hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def node(tmp_path):
    """Return a function that runs a command with the model of the hub at an address."""

    def run(hub, *arguments):
        options = ("--set", f"policy.model={MODEL}") if arguments[0] == "join" else ()
        environment = {name: os.environ[name] for name in os.environ if "HF_" not in name}
        own = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hub"), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "node.cli.main", *arguments, *options]
        how = {"cwd": tmp_path, "capture_output": True, "text": True}
        return subprocess.run(command, env=environment | own, **how)

    return run


def test_join_fails_with_advice_if_hub_is_silent_or_unreachable(node, silent):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{held.getsockname()[1]}"
        told = {silent: f"{silent} did not answer within 3 s", unused: "the hub is unreachable"}
        for address, message in told.items():
            result = node(address, "join", "--rounds", "1")
            assert result.returncode == 2 and message in result.stderr
            assert "HF_ENDPOINT" in result.stderr and "Traceback" not in result.stderr


def test_model_is_downloaded_once_and_then_read_without_a_hub(node, hub, silent, tmp_path):
    assert node(hub, "join", "--rounds", "1").returncode == 0 and Hub.gone == set(FILES)
    log = (tmp_path / "swarm-run" / "node.log").read_text()
    assert f"start: fetching {MODEL}: " in log and " MB, about " in log
    Hub.gone = set()
    assert node(hub, "eval", "--model", MODEL, "--tasks", "1", "--samples", "1").returncode == 0
    assert Hub.gone == set()
    result = node(silent, "eval", "--model", MODEL, "--tasks", "1", "--samples", "1")
    assert result.returncode == 0 and "The node uses the cached files" in result.stderr


def test_missing_hub_model_error_names_the_model(node, hub):
    assert node(hub, "init", ".").returncode == 0
    result = node(hub, "eval", "--model", "somebody/else", "--tasks", "1")
    assert result.returncode != 0
    assert "'somebody/else' (no such folder here, and no such model on the hub)" in result.stderr
