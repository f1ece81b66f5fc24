"""The beginning of a stream, at which its protocol is agreed on."""

from __future__ import annotations

from swarm.transport.libp2p.bridge import CHUNK
from swarm.transport.libp2p.multistream import agreed
from swarm.transport.libp2p.stack import Stream

NEGOTIATION_SECONDS = 3.0


class Source:
    """Reads a stream in whole chunks and hands it out in pieces.

    Attributes:
        rest: what was read and not handed out.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.rest = b""

    async def read(self, n: int) -> bytes:
        """Exactly ``n`` bytes; raises ``EOFError``, ``OSError``."""
        while len(self.rest) < n:
            chunk = await self._stream.read(CHUNK)
            if not chunk:
                raise EOFError("it hung up")
            self.rest += chunk
        data, self.rest = self.rest[:n], self.rest[n:]
        return data


class Proposed:
    """A stream whose other side has not said yet whether it speaks the protocol."""

    def __init__(self, stream: Stream, protocol: str) -> None:
        self._stream = stream
        self._source = Source(stream)
        self._protocol = protocol
        self._agreed = False

    async def read(self, most: int) -> bytes:
        """As of a stream; raises ``ConnectionError`` where the protocol is not spoken."""
        import trio

        if self._agreed:
            return await self._stream.read(most)
        try:
            with trio.fail_after(NEGOTIATION_SECONDS):
                await agreed(self._source.read, self._protocol)
        except (trio.TooSlowError, EOFError, ConnectionError, ValueError) as error:
            raise ConnectionError(f"no stream: {error or 'no answer'}") from error
        self._agreed = True
        return self._source.rest or await self._stream.read(most)

    async def write(self, data: bytes) -> None:
        """As of a stream; who does not speak the protocol may end it before saying so."""
        try:
            await self._stream.write(data)
        except ConnectionError as error:
            if self._agreed:
                raise
            raise ConnectionError(f"no stream: {error}") from error

    async def close(self) -> None:
        await self._stream.close()

    async def reset(self) -> None:
        await self._stream.reset()
