"""How a node reaches its peers."""

from __future__ import annotations

import os
import socket
import sys
from abc import ABC, abstractmethod
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from node.config.registry import TRANSPORTS, Kind
from node.config.sections import NetworkSection
from node.errors import ConfigError
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

if TYPE_CHECKING:
    from swarm.transport.transport import Transport


class TransportKind(Kind, ABC):
    """One peer-to-peer stack; each has a file in ``transports/``.

    Attributes:
        Options: keys of ``network.transport_options``.
        daemon: whether hivemind's p2p daemon works for it.
    """

    daemon: ClassVar[bool] = False

    def check(self, network: NetworkSection) -> None:
        """Look for what it needs of this machine; nothing heavy is loaded.

        Raises:
            ConfigError: a package is missing, or a key asks for what it cannot do.
        """

    @abstractmethod
    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        """A transport that is not started yet.

        Args:
            folder: holds the identity, and the addresses of peers met before.
            beside: whether a learner runs in this process, which strangers must not slow down.
        """


def check_transport(network: NetworkSection) -> None:
    """Look for what the transport works with.

    Raises:
        ConfigError: there is no such transport, or this machine has not what it needs.
    """
    TRANSPORTS.load(network.transport)().check(network)


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


FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}


KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def listened_on(address: str) -> tuple[int, int, str, int] | None:
    """Family, kind, host and port of a multiaddress; None where that cannot be tried."""
    _, family, host, kind, port, *_ = [*address.split("/"), "", "", "", ""]
    if family not in FAMILIES or kind not in KINDS or not port.isdecimal():
        return None
    return FAMILIES[family], KINDS[kind], host, int(port)


def why_not_free(address: str) -> str:
    """What keeps this machine from listening there; empty where nothing does, or it is not known.

    Port 0 is any free one.
    """
    place = listened_on(address)
    if place is None or place[3] == 0:
        return ""
    family, kind, host, port = place
    with closing(socket.socket(family, kind)) as probe:
        if os.name == "posix":  # Windows would let it take a port from its holder
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
