"""A swarm of real nodes that is mistreated on purpose, and the checks of what it wrote meanwhile.

``python -m tests.chaos run`` draws every event from a seed; ``python -m tests.chaos soak`` leaves
a swarm alone and looks whether anything grows.
"""
