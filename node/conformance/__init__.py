"""Conformance tests: whether any peer follows ``docs/protocol.md``."""
