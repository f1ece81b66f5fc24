"""What the log says of dials: each address that fails once, and once more when it answers."""

from __future__ import annotations

import logging

from swarm.transport.transport import ClockSkew

logger = logging.getLogger(__name__)

REMEMBERED = 4096
"""Addresses that did not answer, most of which peers choose; with more, all are told of anew."""


class DialLog:
    """Remembers which addresses it has said not to answer."""

    def __init__(self) -> None:
        self._unreachable: set[str] = set()

    def failed(self, address: str, error: BaseException, *, reached: bool) -> None:
        """Tell of a dial that failed.

        Args:
            reached: others that were dialled with it answered.
        """
        if address in self._unreachable:
            return
        if len(self._unreachable) >= REMEMBERED:
            self._unreachable.clear()
        self._unreachable.add(address)
        # Where others answer, a clock that is wrong is the peer's.
        level = logging.WARNING if isinstance(error, ClockSkew) and reached else logging.INFO
        logger.log(level, "%s; dialling goes on", error)

    def answered(self, address: str, peer: str) -> None:
        """Tell of a peer that is back."""
        if address in self._unreachable:
            logger.info("peer %s answers again at %s", peer, address)
            self._unreachable.discard(address)
