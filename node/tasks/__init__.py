"""Verifiable tasks: where questions come from, how answers are scored, and the worker that does it."""
