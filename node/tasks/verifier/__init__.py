"""Verifier of answers: the sandboxed worker process and its owner."""
