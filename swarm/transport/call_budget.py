"""What calls of the hash table may cost this node, fairly between the peers that call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from swarm.common.counters import Counters
from swarm.common.fair_limits import ByteBudget
from swarm.transport.guests import Guests

RPC_BYTES_PER_SECOND = 1 << 20
RPC_SENT_PER_SECOND = 8 << 20
RPC_LARGEST = 1 << 19


class CallBudget:
    """Charges every call that comes in, and its answer.

    So nobody can keep this node verifying records or sending the same shard again and again.
    """

    def __init__(self, counters: Counters, guests: Guests) -> None:
        self._counters = counters
        self._guests = guests
        self._received = ByteBudget(
            RPC_BYTES_PER_SECOND, RPC_LARGEST, guests.clock, guests.standings
        )
        self._sent = ByteBudget(RPC_SENT_PER_SECOND, RPC_LARGEST, guests.clock, guests.standings)

    async def serve(self, caller: str, size: int, handle: Callable[[], Awaitable[bytes]]) -> bytes:
        """What ``handle`` answers to a request of ``caller`` with ``size`` bytes.

        Raises:
            PermissionError: the caller has used up its share.
        """
        served = not self._guests.shown_out(caller) and self._received.take(caller, size)
        if not (served and self._sent.take(caller, 0)):
            self._counters.add("dht_calls_refused")
            self._guests.refused(caller)
            raise PermissionError("over budget")
        answer = await handle()
        self._sent.owe(caller, len(answer))
        return answer
