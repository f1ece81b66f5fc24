"""Stand-in for pycosat 0.6.6, which reasoning-gym requires and PyPI has as C source only.

reasoning-gym calls ``itersolve`` to count the solutions of a logic puzzle. No question or answer
depends on the order of the models, so any complete solver gives the same tasks. python-sat has
wheels for every platform that swarm-node supports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def itersolve(clauses: Iterable[Iterable[int]]) -> Iterator[list[int]]:
    """Yield every model of a formula in conjunctive normal form.

    Args:
        clauses: Lists of nonzero literals; ``-3`` is the negation of variable 3.

    Yields:
        One signed literal per variable, by variable. Models come in no particular order.

    Source: the interface of pycosat 0.6.6; Glucose 4 through python-sat.
    """
    # Only here: every verifier imports reasoning-gym, and few make logic puzzles.
    from pysat.solvers import Solver

    with Solver(name="glucose4", bootstrap_with=clauses) as solver:
        yield from solver.enum_models()
