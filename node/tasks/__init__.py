"""Verifiable tasks: where questions come from, and the worker process that scores the answers."""
