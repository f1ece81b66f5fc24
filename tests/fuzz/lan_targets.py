"""What ``swarm.lan`` does with names that anybody on the local network announces."""

from __future__ import annotations

from ipaddress import ip_interface

from swarm.lan.multicast import SERVICE, BadSighting, sightings_of, text_of
from tests.fuzz.target import Target
from tests.protocol.samples import ALICE


def announced() -> Target:
    """A name's own bytes, and those of its records."""
    from zeroconf import BadTypeInNameException, ServiceInfo

    here = (ip_interface("192.168.7.2/24"),)

    def run(data: bytes) -> None:
        length = int.from_bytes(data[:1], "big")
        name, text = data[1 : 1 + length], data[1 + length :]
        told = f"{name.decode('utf-8', 'replace')}.{SERVICE}"
        info = ServiceInfo(SERVICE, told, properties=text)
        sightings_of(info.properties, int.from_bytes(text[:2], "big"), ["192.168.7.9"], here)

    said = [b"%b=%b" % pair for pair in text_of(ALICE.peer_id, bytes(32)).items()]
    good = b"".join(bytes([len(each)]) + each for each in said)
    return Target(
        "announced",
        run,
        (BadSighting, BadTypeInNameException),
        (b"\x04anna" + good, b"\x00" + good[:40], b"\x01.\x00"),
    )


TARGETS = {announced.__name__: announced}
