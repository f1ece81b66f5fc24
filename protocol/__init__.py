"""The wire format: identity, manifest, rollouts, frames, announcements and keys.

This package uses no network, clock or torch. ``docs/protocol.md`` specifies every byte.
"""
