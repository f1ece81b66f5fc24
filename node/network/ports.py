"""Whether an address of this machine could be listened on."""

from __future__ import annotations

import os
import socket
from contextlib import closing

FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}
KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def listened_on(address: str) -> tuple[int, int, str, int] | None:
    """Family, kind, host and port of a multiaddress; None where that cannot be tried."""
    _, family, host, kind, port, *_ = [*address.split("/"), "", "", "", ""]
    if family not in FAMILIES or kind not in KINDS or not port.isdecimal():
        return None
    return FAMILIES[family], KINDS[kind], host, int(port)


def why_not_free(address: str) -> str:
    """What keeps this machine from listening there; empty where nothing does, or it is not known.

    Port 0 is any free one.
    """
    place = listened_on(address)
    if place is None or place[3] == 0:
        return ""
    family, kind, host, port = place
    with closing(socket.socket(family, kind)) as probe:
        if os.name == "posix":  # Windows would let it take a port from its holder
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
