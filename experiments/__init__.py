"""Swarms simulated in one process, to measure the benefit of shared experience."""
