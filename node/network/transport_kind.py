"""How a node reaches its peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from node.config.kind import Kind
from node.config.sections import NetworkSection
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

if TYPE_CHECKING:
    from swarm.transport.transport import Transport


class TransportKind(Kind, ABC):
    """One peer-to-peer stack; each has a file in ``transports/``.

    Attributes:
        Options: keys of ``network.transport_options``.
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
