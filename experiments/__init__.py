"""Swarms simulated whole in one process, to measure what sharing experience is worth."""
