import base64
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.storage.checkpoints import Checkpoints
from tests.end_to_end.commands import ROOT
from tests.support import saved_policy

EXPORT = ("export", "--config", "node", "--out", "model")


class Hub(BaseHTTPRequestHandler):
    """A hub that accepts files inside commits, as the real hub does for small files."""

    taken: dict[str, bytes]
    made: list[dict[str, Any]]
    refuses: bool

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        here = f"http://127.0.0.1:{self.server.server_port}"
        if self.refuses:
            self._answer({"error": "this token may not write"}, 403)
        elif self.path == "/api/repos/create":
            self.made.append(json.loads(body))
            self._answer({"url": f"{here}/anna/mine", "id": "anna/mine"})
        elif "/preupload/" in self.path:
            files = [f["path"] for f in json.loads(body)["files"]]
            modes = [{"path": f, "uploadMode": "regular", "shouldIgnore": False} for f in files]
            self._answer({"files": modes})
        elif "/commit/" in self.path:
            rows = map(json.loads, body.splitlines())
            files = [row["value"] for row in rows if row["key"] == "file"]
            self.taken |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            self._answer({"commitUrl": f"{here}/anna/mine/commit/1", "commitOid": "1" * 40})
        else:
            self._answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self._answer({"id": "anna/mine", "sha": "0" * 40, "siblings": []})

    def log_message(self, format: str, *args: Any) -> None:
        """Keep request logs out of pytest's output."""

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub():
    handler = type("OneHub", (Hub,), {"taken": {}, "made": [], "refuses": False})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def trained(node):
    Checkpoints(node.checkpoints).save(1, saved_policy, {"round": 1, "policy_step": 1})
    return node


def exported(endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Export in a separate process, because the client reads HF_ENDPOINT only once."""
    environment = {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_of_anna", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "node.cli.main", *EXPORT, "--push", "anna/mine", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.cwd()), **environment},
    )


def test_export_pushes_all_files_to_a_private_repository(terminal, trained, hub):
    endpoint, taken = hub
    done = exported(endpoint, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pushed"] == f"{endpoint}/anna/mine"
    (made,) = taken.made
    assert made["name"] == "mine" and (made.get("private") or made["visibility"] == "private")
    files = {path.name: path.read_bytes() for path in Path("model").iterdir() if path.is_file()}
    assert taken.taken == files and {"README.md", "model.safetensors"} <= files.keys()


@pytest.mark.parametrize("there", [True, False])
def test_failed_push_keeps_the_export_and_shows_a_fix(terminal, trained, hub, there):
    endpoint, taken = hub
    taken.refuses = True
    done = exported(endpoint if there else "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "not pushed to anna/mine" in done.stderr and "hf upload anna/mine model" in done.stderr
    assert Path("model/README.md").is_file()


@pytest.mark.parametrize(
    ("repo", "token", "said"),
    [("no name/at/all", "x", "user/my-model"), ("anna/mine", None, "hf auth login")],
)
def test_export_checks_push_before_writing(terminal, trained, monkeypatch, repo, token, said):
    monkeypatch.setattr("node.evaluation.export.get_token", lambda: token)
    output = terminal.fails(2, *EXPORT, "--push", repo)
    assert repo in output and said in output and not Path("model").exists()
