"""What goes over the wire: identity, manifest, rollouts, frames, announcements and keys.

Nothing here touches the network, the clock or torch; ``docs/protocol.md`` specifies every byte.
"""
