"""A TCP connection as the package libp2p reads and writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio

WIRE_BYTES = 1 << 16


class Wire:
    """Reads in large pieces what the package asks for two bytes at a time."""

    def __init__(self, tcp: trio.SocketStream) -> None:
        self._tcp = tcp
        self._unread = b""

    async def read(self, n: int | None = None) -> bytes:
        """At most ``n`` bytes; empty at the end."""
        import trio

        if not self._unread:
            try:
                self._unread = bytes(await self._tcp.receive_some(WIRE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        data, self._unread = self._unread[:n], self._unread[n:] if n is not None else b""
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        import trio

        try:
            await self._tcp.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionResetError("the connection is gone") from error

    async def close(self) -> None:
        await self._tcp.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: whoever made the connection knows where it leads."""
        return None
