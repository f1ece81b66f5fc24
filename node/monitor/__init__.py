"""Metrics, logs and terminal views of a node, and the files that hold them."""
