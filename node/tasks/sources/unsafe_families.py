"""The families of reasoning-gym that need care, and why.

Scoring those in ``EVALUATING`` runs the text of an answer as code.
Whoever scores a stranger's answer to one of these hands that stranger this process, so groups of
them are taken from nobody. The list is held by a test that tries payloads on every family of the
library; it names what the test found for the version in ``pyproject.toml``, and ``composite``,
which scores by any other family.
"""

from __future__ import annotations

EVALUATING = frozenset(
    {
        "binary_matrix",
        "composite",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)

UNREPEATABLE = frozenset({"codeio"})
"""Families whose questions are not the same in two processes: nobody could check their rewards.

The list is held by a test that builds and scores every family of the library in two processes.
"""
