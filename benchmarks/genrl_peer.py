"""One peer of genrl's exchange, driven over standard input; run by ``benchmarks/peers.py``.

Prints the addresses that others dial it by, then a line for every exchange that it is told of.
Needs ``gensyn-genrl`` and nothing of this project.

    python benchmarks/genrl_peer.py SECONDS [ADDRESS ...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from base64 import b85encode

import hivemind
from hivemind.utils import get_dht_time


def tell(**told: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(told), flush=True)


def main() -> None:
    """Join, and exchange as often as a line asks for it."""
    # genrl takes it from here, where the present hivemind no longer has it
    hivemind.get_dht_time = get_dht_time
    from genrl.communication.hivemind.hivemind_backend import HivemindBackend, HivemindRendezvouz

    seconds, *peers = sys.argv[1:]
    HivemindRendezvouz.init(is_master=not peers)
    backend = HivemindBackend(initial_peers=peers or None, timeout=int(seconds))
    tell(addresses=[str(address) for address in backend.dht.get_visible_maddrs()])
    for line in sys.stdin:
        asked = json.loads(line)
        payload = b85encode(os.urandom(asked["bytes"] * 4 // 5)).decode()
        began, fault = time.perf_counter(), ""
        try:
            found = backend.all_gather_object(payload)
        except (RuntimeError, TypeError) as error:
            found, fault = {}, f"{type(error).__name__}: {error}"
        others = [text for peer, text in found.items() if peer != backend.get_id()]
        whole = sum(len(text) == len(payload) for text in others)
        tell(seconds=time.perf_counter() - began, whole=whole, fault=fault)


if __name__ == "__main__":
    main()
