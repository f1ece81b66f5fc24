"""How a browser gets in where others can reach the dashboard as well."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable

COOKIE = "swarm_node_dashboard"
BYTES = 32


class Entry:
    """A token that opens once, and the cookie that it is exchanged for.

    Whoever runs the node finds the next token, as it found the first, in what it is told of.

    Args:
        tell: told every new token.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._session = secrets.token_urlsafe(BYTES)
        self._lock = threading.Lock()
        self._token = secrets.token_urlsafe(BYTES)
        tell(self._token)

    def exchange(self, token: str) -> str | None:
        """The cookie's value for the token of the moment, which is worth nothing from then on."""
        with self._lock:
            if not _equal(token, self._token):
                return None
            self._token = secrets.token_urlsafe(BYTES)
            self._tell(self._token)
        return self._session

    def admits(self, cookie: str) -> bool:
        """Whether the value of a cookie is the one that was given out."""
        return _equal(cookie, self._session)


def _equal(given: str, secret: str) -> bool:
    """In the same time wherever they differ."""
    return hmac.compare_digest(given.encode(), secret.encode())
