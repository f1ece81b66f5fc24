"""Verifiable tasks: task sources and the worker process that scores answers."""
