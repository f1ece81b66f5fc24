"""The life cycle of a node: start, rounds, status, stop and resume."""
