"""How a node reaches its peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from node.config.base import Section
from node.config.sections import NetworkSection
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

if TYPE_CHECKING:
    from swarm.transport.transport import Transport


class TransportKind(ABC):
    """One peer-to-peer stack; each has a file in ``transports/``.

    Args:
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, keys of ``network.transport_options``; None: none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, options: Any = None) -> None:
        self.options = options

    @abstractmethod
    def open(
        self, network: NetworkSection, folder: RunFolder, counters: Counters, *, beside: bool
    ) -> Transport:
        """A transport that is not started yet.

        Args:
            folder: holds the identity, and the addresses of peers met before.
            beside: whether a learner runs in this process, which strangers must not slow down.
        """
