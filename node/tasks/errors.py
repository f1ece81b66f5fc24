"""What can be wrong with a catalogue."""

from __future__ import annotations


class CatalogueError(ValueError):
    """A catalogue cannot be read or opened; the message names the env, the key and the remedy."""
