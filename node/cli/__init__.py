"""The ``swarm-node`` command: one file for each of its commands."""
