"""Connections to a dashboard, none of which is held for nothing."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST = 96
"""At once."""
MOST_OF_ONE = 64
"""Of one address."""
PATIENCE_SECONDS = 10.0
"""In which a request has to be complete, and an answer to be read before more of it is sent."""


class Connection(H11Protocol):
    """A connection that ends where too many are open, and where its client takes no part in it.

    Attributes:
        most: at once.
        most_of_one: of one address.
    """

    most: ClassVar[int] = MOST
    most_of_one: ClassVar[int] = MOST_OF_ONE
    _writing: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _last: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called once it is open."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        others = [each for each in self.connections if isinstance(each, Connection)]
        of_one = [each for each in others if each.client and each.client[0] == address]
        if len(self.connections) > self.most or len(of_one) > self.most_of_one:
            transport.abort()
            return
        self._looking = self.loop.call_later(PATIENCE_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called once it is closed."""
        for timer in (self._looking, self._writing):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called where the client reads less than it is sent."""
        self._writing = self.loop.call_later(PATIENCE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Called once it has read on."""
        if self._writing:
            self._writing.cancel()
        super().resume_writing()

    def _look(self) -> None:
        """End it where no request has come since the last look, and none is being answered."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._last:
            self.transport.abort()
            return
        self._last = self.cycle
        self._looking = self.loop.call_later(PATIENCE_SECONDS, self._look)
