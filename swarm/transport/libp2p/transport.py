"""The swarm over the package libp2p, without a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarm.transport.libp2p.node import Libp2pNode
from swarm.transport.node_transport import NodeTransport


class Libp2pTransport(NodeTransport):
    """:class:`swarm.transport.transport.Transport` over a host of this process.

    Not in one process with hivemind: their versions of protobuf's messages collide.

    Args:
        identity, settings: as of :class:`NodeTransport`.
    """

    def __init__(self, identity: Path, **settings: Any) -> None:
        super().__init__(Libp2pNode.start, identity, **settings)
