"""``python -m tests.swarm.lan.late PEER`` asks nothing, and says when it hears all of a
node's records.

What is said by multicast DNS in the first seconds, twice what a node's first announcements take, is
lost on it.
"""

from __future__ import annotations

import sys
import time

from zeroconf import DNSIncoming, DNSService, DNSText

from tests.swarm.lan.quiet import ear

LOST_SECONDS = 5.0


def hear(peer: str) -> None:
    """Return once one datagram tells where the node listens and which swarm it is of."""
    print("listening", flush=True)
    with ear() as heard:
        end = time.monotonic() + LOST_SECONDS
        while True:
            said = DNSIncoming(heard.recv(9000))
            if time.monotonic() < end or said.is_query():
                continue
            here = [each for each in said.answers() if each.name.startswith(peer)]
            if {DNSService, DNSText} <= {type(each) for each in here}:
                break
    print("heard", flush=True)


if __name__ == "__main__":
    hear(sys.argv[1])
    sys.stdin.read()
