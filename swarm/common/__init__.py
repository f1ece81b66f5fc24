"""Shared basics: clocks, counters, fair limits, child processes and small utilities."""
