"""The ``swarm-node`` command: its commands, their options and reference pages."""
