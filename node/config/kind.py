"""What all kinds of parts have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from node.config.base import Section


class Kind:
    """One of several ways to do a thing, chosen by name in the configuration.

    Args:
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, keys of the table beside the key that names it; None: none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, options: Any = None) -> None:
        self.options = options
