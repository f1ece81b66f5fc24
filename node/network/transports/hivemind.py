"""hivemind's hash table and libp2p streams."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from node.config.sections import NetworkSection
from node.errors import ConfigError
from node.network.transport_kind import TransportKind
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

if TYPE_CHECKING:
    from swarm.transport.transport import Transport


class Hivemind(TransportKind):
    """Real p2p daemons; beside a learner in a process of their own."""

    daemon = True

    def check(self, network: NetworkSection) -> None:
        """Look for the package."""
        if find_spec("hivemind") is None:
            remedy = (
                "hivemind is not installed: run pip install hivemind==1.1.12 on Linux or macOS, or "
                "pip install 'swarm-node[libp2p]' and set it to 'libp2p'."
            )
            raise ConfigError("network.transport", "hivemind", remedy)

    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        """One that listens and announces as the configuration says."""
        from swarm.transport.hivemind.transport import HivemindTransport
        from swarm.transport.subprocess.transport import ApartTransport

        kind = ApartTransport if beside else HivemindTransport
        return kind(
            folder.identity,
            listen=network.listen,
            announce=network.announce,
            peers=network.peers,
            relay=network.relay == "auto",
            start_timeout=network.start_timeout,
            peer_cache=folder.peer_cache,
            counters=counters,
        )
