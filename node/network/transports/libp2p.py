"""hivemind's hash table and libp2p streams over the package libp2p, without a daemon."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from node.config.sections import NetworkSection
from node.errors import ConfigError
from node.network.transport_kind import TransportKind
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

if TYPE_CHECKING:
    from swarm.transport.transport import Transport


class Libp2p(TransportKind):
    """The same network on every system; beside a learner in a process of its own."""

    def check(self, network: NetworkSection) -> None:
        """Look for the package."""
        if find_spec("libp2p") is None:
            remedy = "libp2p is not installed: run pip install 'swarm-node[libp2p]', or change it."
            raise ConfigError("network.transport", "libp2p", remedy)

    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        """One that listens and announces as the configuration says."""
        from swarm.transport.libp2p.node import Libp2pTransport
        from swarm.transport.subprocess.transport import ApartTransport

        self.check(network)
        settings: dict[str, Any] = {
            "listen": network.listen,
            "announce": network.announce,
            "peers": network.peers,
            "relay": network.relay == "auto",
            "start_timeout": network.start_timeout,
            "peer_cache": folder.peer_cache,
            "counters": counters,
        }
        # A process is handed one end of a socket pair, which Windows does not do.
        if beside and sys.platform != "win32":
            return ApartTransport(folder.identity, over=Libp2pTransport, **settings)
        return Libp2pTransport(folder.identity, **settings)
