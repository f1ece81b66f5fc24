"""Names whose TXT records list the addresses of peers: the only file that imports dnspython.

Source: https://github.com/multiformats/multiaddr/blob/master/protocols/DNSADDR.md.
"""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger(__name__)

NAMED = "/dnsaddr/"
RECORD = "dnsaddr="
SECONDS = 4.0
MOST_NESTED = 3
MOST_NAMES = 8
MOST_ADDRESSES = 16


async def resolved(address: str) -> tuple[str, ...]:
    """The addresses that an address stands for, which all end in its peer.

    Raises:
        OSError: it is a name, and none of its records is an address of the peer.
    """
    found: dict[str, None] = {}
    names, peer = [address], address.rpartition("/p2p/")[2]
    for _ in range(MOST_NESTED + 1):
        found |= dict.fromkeys(name for name in names if not name.startswith(NAMED))
        names = [name for name in names if name.startswith(NAMED)][:MOST_NAMES]
        if not names:
            break
        listed = await asyncio.gather(*map(_listed, names))
        names = [each for some in listed for each in some if each.endswith(f"/p2p/{peer}")]
    if not found:
        raise OSError("the name is unknown, or lists no address of this peer")
    return tuple(found)[:MOST_ADDRESSES]


async def _listed(name: str) -> list[str]:
    """What the TXT records of a name list; nothing where there are none."""
    from dns.asyncresolver import resolve
    from dns.exception import DNSException

    host = name.removeprefix(NAMED).partition("/")[0]
    try:
        answer = await resolve(f"_dnsaddr.{host}", "TXT", lifetime=SECONDS)
    except (DNSException, OSError) as error:
        logger.info("the addresses of %s are not known: %s", host, error)
        return []
    texts = (b"".join(record.strings).decode(errors="replace") for record in answer)
    return [text.removeprefix(RECORD) for text in texts if text.startswith(RECORD)]
