"""Synthetic data of a public swarm page, and a web server for the page's files."""

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from node.dashboard.app import STATIC as DASHBOARD
from node.dashboard.public_server import SHARED, STATIC

DAY, HOUR, BUCKET = 86_400, 3_600, 600
FAMILIES = ("sorting", "sums", "last letters")
MODELS = ("org/small-0.5b", "org/medium-1b", None)
ADDRESS = "/ip4/203.0.113.5/tcp/4801/p2p/12D3KooW" + "s" * 44
Page = dict[str, Any]


def key(at: int) -> str:
    return sha256(str(at).encode()).hexdigest()


def made(points: int = 300, authors: int = 12, texts: Sequence[str] = (), every=60) -> Page:
    """Return the three data files of a page by name.

    The history has ``points`` of ten minutes; the observer looks every ``every`` seconds. Fields
    that peers choose take the ``texts`` in turn.
    """
    now = int(time.time())
    people = [_author(at, now, texts) for at in range(authors)]
    families = list(texts[:30]) or list(FAMILIES)
    return {
        "swarm": _swarm(now, people, families, texts, every),
        "history": _history(now, points, families),
        "authors": {"authors": people, "more": 3},
    }


def empty(every: float = 60) -> Page:
    """Return the page of an empty swarm at the first look."""
    page = made(0, 0, every=every)
    page["authors"]["more"] = 0
    nothing = {"offered": 0, "checked": 0, "verified": 0, "refused": {}, "authors": 0}
    page["swarm"] |= {"total": nothing, "models": [], "versions": [], "rewards": [], "join": []}
    page["swarm"]["now"] |= {"nodes": 0, "bootstrap": 0, "groups_offered": 0, "estimated": None}
    return page


def _swarm(now: int, people: list, families: list, texts: Sequence[str], every: float) -> Page:
    refused = dict.fromkeys(texts, 2) or {"reward_mismatch": 3, "too_slow": 1}
    named = list(texts) or ["sorting together"]
    links = {"bootstrap": 2, "estimated": 40, "connected": 6, "relayed": 2, "direct": 4}
    groups = {"offered": 9_000, "checked": 900, "verified": 870}
    return {
        "version": "0.1.0",
        "time": now,
        "since": now - 3 * DAY,
        "every": every,
        "observer": {"peer_id": "12D3KooW" + "o" * 44, "kind": "bootstrap"},
        "swarm": {
            "id": key(-1),
            "name": named[0],
            "founder": key(-2),
            "created": now - 30 * DAY,
            "epoch_seconds": 300.0,
            "families": [{"name": family, "levels": 3} for family in families],
        },
        "join": [ADDRESS, ADDRESS.replace("ip4/203.0.113.5", "dns4/seed.example.org"), *texts],
        "now": {"nodes": len(people), "groups_offered": 321, **links},
        "total": {"authors": len(people) + 3, **groups, "refused": refused},
        "models": [{"model": each, "nodes": 4} for each in texts or MODELS],
        "versions": [{"version": each, "nodes": 4} for each in texts or ("0.1.0", None)],
        "rewards": [
            {"env": env, "level": 1, "groups": 30, "reward": 0.5, "low": 0.4, "high": 0.6}
            for env in families
        ]
        + [{"env": "odd", "level": 2, "groups": 1, "reward": 1.0, "low": None, "high": None}],
    }


def _history(now: int, points: int, families: list[str]) -> Page:
    begin = now - now % BUCKET - points * BUCKET
    times = [begin + at * BUCKET for at in range(points)]

    def wave(low: float, high: float) -> list[float | None]:
        half = (high - low) / 2
        curve = [low + half + half * math.sin(at / 9) for at in range(points)]
        return [None if at % 50 == 7 else value for at, value in enumerate(curve)]

    nodes = {"nodes": wave(5, 12), "joined": wave(0, 2), "left": wave(0, 1)}
    groups = {"offered": wave(60, 120), "checked": wave(6, 12), "verified": wave(5, 11)}
    groups |= {"refused": wave(0, 1)}
    rewards = {env: wave(0.1, 0.2 + 0.02 * at) for at, env in enumerate(families)}
    return {"time": times, "seconds": [BUCKET] * points, **nodes, **groups, "rewards": rewards}


def _author(at: int, now: int, texts: Sequence[str]) -> Page:
    text = texts[at % len(texts)] if texts else None
    nobody = text is None and at % 3 == 2
    today = now - now % DAY
    rewards = {text: 0.5} if text is not None else {"sorting": 0.5, "sums": 0.25}
    told = (f"node {at}", "trains at night", MODELS[0], "0.1.0")
    if text is not None or nobody:
        told = (text,) * 4
    return {
        "author": key(at),
        "peer_id": f"12D3KooW{key(at)[:44]}",
        **dict(zip(("name", "line", "model", "version"), told, strict=True)),
        "first": now - 3 * DAY,
        "last": now - 60 * at,
        "policy_step": 100 + at,
        "bootstrap": at % 5 == 4,
        "link": ("direct", "relayed", None)[at % 3],
        "offered": 1_000 - at,
        "checked": 100,
        "verified": 98 - at % 90,
        "refused": {text: 2} if text is not None else {"reward_mismatch": at % 3},
        "rewards": {} if nobody else rewards,
        "days": [[today - n * DAY, 40 + n, 4, 0.5 if n % 4 else None] for n in range(29, -1, -1)],
    }


UNDER = "a/b c/"
"""Path of the page on its host: not the root, and with a space in it."""


def sent() -> dict[str, Path]:
    """Return the files of the page except its data, by path on the server."""
    own = {
        ("" if path.name == "index.html" else "static/") + path.relative_to(STATIC).as_posix(): path
        for path in STATIC.rglob("*")
        if path.is_file()
    }
    return own | {f"static/shared/{name}": DASHBOARD / name for name in SHARED}


class Host:
    """A local web server for a folder; it can be stopped and started again."""

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
        """Replace the data files; each replacement is atomic."""
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
    """File handler with content-based ETags, because file times are too coarse here."""

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
        """Keep request logs out of pytest's output."""


@contextmanager
def hosted(root: Path, page: Page) -> Iterator[Host]:
    host = Host(root)
    with closing(host):
        host.tell(page)
        yield host
