"""How a node runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node runs.

    Attributes:
        identity: libp2p private key file.
        listen: multiaddresses to listen on.
        announce: multiaddresses told to others instead of the ones listened on.
        relays: addresses of peers that relay for this one when it cannot be reached.
        start_timeout: seconds for it to come up.
    """

    identity: Path
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    relays: tuple[str, ...]
    start_timeout: float
