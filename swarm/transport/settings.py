"""How a node runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["public", "private", ""]
"""What a node takes itself for: dialled and a relay for others; behind relays; it guesses."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node runs.

    Attributes:
        identity: libp2p private key file.
        listen: multiaddresses to listen on.
        announce: multiaddresses told to others instead of the ones listened on.
        start_timeout: seconds for it to come up.
        role: what others are told of it.
        relays: addresses of peers that relay for this one in the role "private".
    """

    identity: Path
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    start_timeout: float
    role: Role = ""
    relays: tuple[str, ...] = ()

    @property
    def client(self) -> bool:
        """Whether the node asks the hash table and holds nothing of it."""
        return self.role == "private"
