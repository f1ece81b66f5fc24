"""A page in memory, made ready once for all who will ask for it."""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from hashlib import sha256

from node.swarm_page.files import INDEX, Page

LEAST_PACKED = 512
"""Bytes from which a file is packed."""
LEVEL = 6
TEXTS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One file.

    Attributes:
        body: as it is.
        packed: by gzip; None where that saves nothing.
        etag: the same as long as the body is.
    """

    body: bytes
    packed: bytes | None
    etag: str
    media_type: str

    @classmethod
    def of(cls, path: str, body: bytes) -> Answer:
        """Made ready."""
        packed = gzip.compress(body, LEVEL, mtime=0) if len(body) >= LEAST_PACKED else body
        etag = f'W/"{sha256(body).hexdigest()[:32]}"'
        return cls(body, packed if len(packed) < len(body) else None, etag, media_type(path))


def media_type(path: str) -> str:
    """By the ending of a path, whatever the system says of it."""
    ending = path[path.rfind(".") :]
    if ending in TEXTS:
        return f"{TEXTS[ending]}; charset=utf-8"
    return mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"


def answers(page: Page, before: dict[str, Answer]) -> dict[str, Answer]:
    """By the path that is asked for; what is as it was before is not made anew."""
    found = {}
    for name, body in page.items():
        old = before.get(f"/{name}")
        found[f"/{name}"] = old if old and old.body == body else Answer.of(name, body)
    if (index := found.get(f"/{INDEX}")) is not None:
        found["/"] = index
    return found
