"""The swarm's page as plain files, and a web server that knows nothing of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from node.dashboard.app import STATIC as DASHBOARD
from node.dashboard.public_server import SHARED, STATIC
from tests.dashboard.swarm_page.made_swarm import Page

UNDER = "a/b c/"
"""Where on its host the page lies: neither at the root nor under a simple name."""


def sent() -> dict[str, Path]:
    """Each file of the page but its data, by where it is served."""
    own = {
        ("" if path.name == "index.html" else "static/") + path.relative_to(STATIC).as_posix(): path
        for path in STATIC.rglob("*")
        if path.is_file()
    }
    return own | {f"static/shared/{name}": DASHBOARD / name for name in SHARED}


class Host:
    """A folder that is served on a port of this machine, and can be out of reach for a while."""

    def __init__(self, root: Path) -> None:
        self.folder = root / UNDER
        for name, path in sent().items():
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        (self.folder / "data").mkdir()
        self._root = root
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{UNDER.replace(' ', '%20')}"

    def tell(self, page: Page) -> None:
        """Write the data anew, each file whole."""
        for name, told in page.items():
            target = self.folder / "data" / f"{name}.json"
            part = target.with_suffix(".part")
            part.write_text(json.dumps(told), encoding="utf-8")
            part.replace(target)

    def up(self) -> None:
        serve = partial(_Files, directory=str(self._root))
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), serve)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Files(SimpleHTTPRequestHandler):
    """Files with a tag of what is in them: times of files are too coarse for these tests."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return
        body = path.read_bytes()
        tag = f'"{sha256(body).hexdigest()}"'
        known = self.headers["If-None-Match"] == tag
        self.send_response(304 if known else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Length", str(0 if known else len(body)))
        self.end_headers()
        self.wfile.write(b"" if known else body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Pytest's output is not this server's log."""


@contextmanager
def hosted(root: Path, page: Page) -> Iterator[Host]:
    """A page with these data, served from a folder."""
    host = Host(root)
    with closing(host):
        host.tell(page)
        yield host
