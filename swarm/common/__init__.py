"""Shared basics of the swarm package: clocks, counters, fair limits and small utilities."""
