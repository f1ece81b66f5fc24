"""The generators that a library shares between its callers, held still for a piece of work."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from node.environments.chance import numpy_random

_DOMAIN = b"swarm-node/1/task-chance"
_kept: ContextVar[bool] = ContextVar("kept", default=False)
"""Whether this thread is inside :func:`kept`."""


@contextmanager
def seeded(env: str, level: int, number: int) -> Iterator[None]:
    """Seed the global generators of ``random`` and numpy, and put them back afterwards.

    Some families of reasoning-gym draw from them, and would otherwise give a question or a score
    that depends on what was asked before. numpy's is seeded where it is imported already.

    Args:
        number: 63 bits; of the question, or of the task that is scored.
    """
    if not _kept.get():
        with kept(), seeded(env, level, number):
            yield
        return
    material = _DOMAIN + env.encode() + b"\0" + level.to_bytes(4, "big") + number.to_bytes(8, "big")
    seed = int.from_bytes(hashlib.sha256(material).digest()[:8], "big")
    random.seed(seed)
    if numpy := numpy_random():
        numpy.seed(seed >> 32)
    yield


@contextmanager
def kept() -> Iterator[None]:
    """Put the global generators back after work that seeds them many times.

    That costs several times what seeding does. Inside another it does nothing: the outermost puts
    them back.
    """
    if _kept.get():
        yield
        return
    numpy = numpy_random()
    before, numpys = random.getstate(), numpy.get_state() if numpy else None
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)
        random.setstate(before)
        if numpy:
            numpy.set_state(numpys)
