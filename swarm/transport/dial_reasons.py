"""Why a peer was not reached, in a few words instead of the daemon's account of it."""

from __future__ import annotations

BACKOFF = "dial backoff"
NO_ADDRESS = "no good addresses"
RELAY = "error opening relay circuit: "
RELAYS = {
    "NO_RESERVATION": "the relay does not relay for it any more; join through another peer",
    "RESOURCE_LIMIT_EXCEEDED": "the relay is full; join through another peer",
}
MAX_ADDRESSES = 1024


class DialReasons:
    """Reads p2pd's errors, and remembers by address what the last real attempt met.

    While p2pd pauses between its attempts at an address it answers nothing but that it pauses.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def of(self, address: str, error: Exception) -> str:
        """The reason in one line."""
        text = str(error) or type(error).__name__
        if BACKOFF in text:
            return self._last.get(address, "not reached lately")
        if RELAY in text:
            status, *_ = [*text.partition(RELAY)[2].split(), ""]
            reason = RELAYS.get(status, "the relay does not reach it")
        elif NO_ADDRESS in text:
            reason = "the name is unknown, or no address of this kind can be dialled"
        else:
            # p2pd lists its attempts as "* [address] dial tcp4 ADDRESS: connect: REASON".
            _, _, attempt = text.partition("] ")
            line = (attempt or text).splitlines()[0]
            reason = line.rpartition("connect: ")[2].rpartition("msg=")[2]
        self._last.pop(address, None)
        if len(self._last) >= MAX_ADDRESSES:
            del self._last[next(iter(self._last))]
        self._last[address] = reason
        return reason

    def forget(self, address: str) -> None:
        """Note that the address answered."""
        self._last.pop(address, None)
