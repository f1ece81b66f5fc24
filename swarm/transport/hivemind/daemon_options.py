"""What a p2p daemon is told at its start."""

from __future__ import annotations

from typing import Any

from swarm.transport.settings import NodeSettings

RELAYED_BYTES = 64 << 20
RELAYED_SECONDS = 30 * 60
RELAYED_CONNECTIONS = 16
RELAYED_PEERS = 128
RELAY_BUFFER = 1 << 16
"""What a node does for others as a relay: bytes each way and seconds of a connection, connections
of a peer, peers, and bytes of a connection's buffer, of which the daemon's own is 16 MiB.

A daemon whose role is not told guesses it, relays 128 KiB a connection in two minutes, and forgets
whom it relays for once it has guessed. Told that it is public it starts its relay twice, with the
numbers above and with those; with one thread, as it has here, those above all but always come last
and are in force."""

RELAY_FLAGS = (
    f"-relayDataLimit={RELAYED_BYTES}",
    f"-relayTimeLimit={RELAYED_SECONDS}s",
    f"-relayMaxCircuits={RELAYED_CONNECTIONS}",
    f"-relayMaxReservations={RELAYED_PEERS}",
    f"-relayBufferSize={RELAY_BUFFER}",
    # With discovery the daemon waits three minutes for relays that nobody named.
    "-relayDiscovery=0",
)


def options(settings: NodeSettings) -> dict[str, Any]:
    """Arguments of hivemind's ``P2P.create``."""
    return {
        "identity_path": str(settings.identity),
        "check_if_identity_free": False,
        "host_maddrs": settings.listen,
        "announce_maddrs": None if settings.client else settings.announce or None,
        "force_reachability": settings.role or None,
        "dht_mode": "client" if settings.client else "server",
        "trusted_relays": settings.relays or None,
        "use_auto_relay": bool(settings.relays),
        "nat_port_map": not all("/127.0.0.1/" in address for address in settings.listen),
        "startup_timeout": settings.start_timeout,
    }
