"""The swarm over real p2p daemons: hivemind's DHT for records, libp2p streams for the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarm.transport.hivemind.light import import_network
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.node_transport import NodeTransport


class HivemindTransport(NodeTransport):
    """:class:`swarm.transport.transport.Transport` over a supervised p2pd.

    Args:
        identity, settings: as of :class:`NodeTransport`.
    """

    relays = True

    def __init__(self, identity: Path, **settings: Any) -> None:
        super().__init__(HivemindNode.start, identity, **settings)

    @staticmethod
    def prepare_process() -> None:
        """Import no more of hivemind than the network."""
        import_network()
