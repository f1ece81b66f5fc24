"""Ports that a test listens on twice."""

import random
import socket
from contextlib import suppress


def lasting_port() -> int:
    """A free port below those that systems give to connections, so that it stays free."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
