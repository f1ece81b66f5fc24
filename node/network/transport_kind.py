"""How a node reaches its peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from node.config.registry import TRANSPORTS, Kind
from node.config.sections import NetworkSection
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
