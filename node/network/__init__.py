"""Membership in a swarm: creation, pinned manifest, transports, running member."""
