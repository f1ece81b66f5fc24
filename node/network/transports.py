"""Transports by which a node reaches its peers, and a check of listen addresses."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any, ClassVar

from node.config.registry import TRANSPORTS, Plugin
from node.config.sections import NetworkSection
from node.errors import ConfigError, NodeError
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.transport.node import binding_error, with_port_of
from swarm.transport.transport import Transport, host_of, port_of


class TransportKind(Plugin, ABC):
    """A peer-to-peer stack; ``daemon`` says if it uses hivemind's p2p daemon."""

    daemon: ClassVar[bool] = False

    def check(self, network: NetworkSection) -> None:
        """Check for missing packages and unsupported keys, or raise ConfigError."""

    def prepare_process(self) -> None:
        """Load the network alone, without torch; call it where nothing trains, before the rest."""

    @abstractmethod
    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        """Create an unstarted transport; ``beside`` protects a learner here from peers."""


def check_transport(network: NetworkSection) -> None:
    """Raise ConfigError if the configured transport is unknown or cannot work here."""
    TRANSPORTS.open(network.transport, network.transport_options).check(network)


def _settings(network: NetworkSection, folder: RunFolder, counters: Counters) -> dict[str, Any]:
    return {
        "listen": _with_last_port(network, folder),
        "announce": network.announce_maddrs,
        "peers": network.peers,
        "relay": network.relay == "auto",
        "start_timeout": network.start_timeout,
        "peer_cache": folder.peer_cache,
        "counters": counters,
    }


def _with_last_port(network: NetworkSection, folder: RunFolder) -> tuple[str, ...]:
    """Return addresses with the last run's port instead of 0, so that peers find the node again."""
    if network.announce_maddrs or not all(each.endswith("/tcp/0") for each in network.listen):
        return network.listen
    try:
        addresses = with_port_of(folder.read_status().get("addresses") or (), network.listen)
        return network.listen if any(map(why_not_free, addresses)) else addresses
    except (NodeError, OverflowError):  # it never ran, or its report is damaged
        return network.listen


class Hivemind(TransportKind):
    """Real p2p daemons; beside a learner in a separate process."""

    daemon = True

    def check(self, network: NetworkSection) -> None:
        if find_spec("hivemind") is None:
            remedy = (
                "hivemind is not installed: run pip install hivemind==1.1.12 on Linux or macOS, or "
                "pip install '.[libp2p]' in the clone and set it to 'libp2p'."
            )
            raise ConfigError("network.transport", "hivemind", remedy)

    def prepare_process(self) -> None:
        from swarm.transport.hivemind.transport import import_network

        if "hivemind" not in sys.modules:
            import_network()

    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        from swarm.transport.hivemind.transport import HivemindTransport
        from swarm.transport.subprocess.transport import SubprocessTransport

        kind = SubprocessTransport if beside else HivemindTransport
        return kind(folder.identity, **_settings(network, folder, counters))


class Libp2p(TransportKind):
    """The same network on every system; beside a learner in a separate process."""

    def check(self, network: NetworkSection) -> None:
        if find_spec("libp2p") is None:
            remedy = "libp2p is missing: run pip install '.[libp2p]' in the clone, or change it."
            raise ConfigError("network.transport", "libp2p", remedy)

    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        from swarm.transport.libp2p.node import Libp2pTransport
        from swarm.transport.subprocess.transport import SubprocessTransport

        self.check(network)
        settings = _settings(network, folder, counters)
        # A separate process receives one end of a socket pair; Windows does not support that.
        if beside and sys.platform != "win32":
            return SubprocessTransport(folder.identity, over=Libp2pTransport, **settings)
        return Libp2pTransport(folder.identity, **settings)


def why_not_free(address: str) -> str:
    """Return why this machine cannot listen at an IP address and TCP port, else empty.

    A name and port 0, which is any free one, are not tried.
    """
    host, port = host_of(address), port_of(address)
    error = binding_error(host, port) if host and port else None
    return "" if error is None else error.strerror or str(error)
