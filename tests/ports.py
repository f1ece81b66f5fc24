"""Ports on which a test can listen more than once."""

import random
import socket
from contextlib import suppress


def lasting_port() -> int:
    """Return a free port below the range that systems assign to connections."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
