"""Environments that may be asynchronous, run by callers that are not."""

from __future__ import annotations

import asyncio
import inspect
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_loop: asyncio.AbstractEventLoop | None = None


def is_async(environment: type[Any]) -> bool:
    """Whether a class of environments has to be waited for."""
    methods = (getattr(environment, name, None) for name in ("reset", "step", "reward"))
    return any(inspect.iscoroutinefunction(method) for method in methods)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """What comes of work on environments, some of which may have to be waited for.

    Where nothing waits there is no need of an event loop, which may already be running here.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("an environment waits for something, and its class does not say async")


def prepare_to_wait() -> None:
    """Make this process's event loop, before it gives up what it takes to make one."""
    global _loop
    _loop = asyncio.SelectorEventLoop(selectors.SelectSelector())


def run(work: Coroutine[Any, Any, T], *, waits: bool) -> T:
    """What comes of work on environments; in an event loop where something ``waits``."""
    if not waits:
        return finished(work)
    return _loop.run_until_complete(work) if _loop else asyncio.run(work)
