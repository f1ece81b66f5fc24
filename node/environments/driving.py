"""Environments that may be asynchronous, run by callers that are not."""

from __future__ import annotations

import asyncio
import inspect
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Around = AbstractContextManager[Any, None]
"""Can be entered many times, one after the other."""
_loop: asyncio.AbstractEventLoop | None = None
_around: ContextVar[tuple[Around, ...]] = ContextVar("around", default=())
"""All that surrounds what runs now, the outermost first."""


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


async def awaited(value: Any) -> Any:
    """The value, or what comes of waiting for it."""
    return await value if inspect.isawaitable(value) else value


async def surrounded(work: Coroutine[Any, Any, T], around: Around) -> T:
    """What comes of work that is inside ``around`` whenever it goes on, and outside while it waits.

    So are the tasks that it begins, in loops that :func:`prepare_to_wait` or :func:`run` has made.
    """
    return await _Surrounded(work, _around.get(), around)


def prepare_to_wait() -> None:
    """Make this process's event loop, before it gives up what it takes to make one."""
    global _loop
    _loop = _new_loop()


def run(work: Coroutine[Any, Any, T], *, waits: bool) -> T:
    """What comes of work on environments; in an event loop where something ``waits``."""
    if not waits:
        return finished(work)
    if _loop:
        return _loop.run_until_complete(work)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(work)


class _Surrounded(Generic[T]):
    """Work that enters ``around`` each time it goes on, inside of what surrounds it already."""

    def __init__(
        self, work: Coroutine[Any, Any, T], outer: tuple[Around, ...], around: Around
    ) -> None:
        self._work = work
        self._all = (*outer, around)
        self._around = around

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(self._work.send, None)
        try:
            while True:
                try:
                    waits_for = self._go_on(step)
                except StopIteration as done:
                    result: T = done.value
                    return result
                try:
                    step = partial(self._work.send, (yield waits_for))
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - raised where the work waits
                    step = partial(self._work.throw, error)
        finally:
            self._work.close()

    def _go_on(self, step: Callable[[], Any]) -> Any:
        token = _around.set(self._all)
        try:
            with self._around:
                return step()
        finally:
            _around.reset(token)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.set_task_factory(_task)
    return loop


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """A task inside what surrounds whoever begins it."""
    around = _around.get()
    for number in reversed(range(len(around))):
        work = _inside(work, around[:number], around[number])
    return asyncio.Task(work, loop=loop, **options)


async def _inside(work: Coroutine[Any, Any, T], outer: tuple[Around, ...], around: Around) -> T:
    return await _Surrounded(work, outer, around)
