"""Python source as a tree."""

from __future__ import annotations

import ast
import gc


def parse(source: str) -> ast.Module:
    """Return the tree, without a garbage collection in between.

    What a collection finalizes makes CPython 3.11 lose count of how deep it is
    (python/cpython#106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()
