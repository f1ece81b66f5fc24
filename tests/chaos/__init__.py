"""Fault injection on a swarm of real nodes, and checks of what the nodes recorded.

``python -m tests.chaos run`` draws all events from a seed. ``python -m tests.chaos soak`` leaves a
swarm undisturbed and checks that no resource grows.
"""
