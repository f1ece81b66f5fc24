"""What the author of an environment writes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import random
import selectors
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_type_hints


class Environment(Protocol):
    """A task of many turns; one instance is one episode. Each method may be ``async``.

    Attributes:
        version: raised whenever the same seed and actions would give anything else.
        replayable: the same seed, settings and actions give the same observations, byte for byte,
            and the same reward, in every process and on every machine. What draws from
            ``random.Random(seed)`` alone is; what asks a clock, a network or a model is not.
            Only what is replayable is shared with others, and learned from where others share it.
    """

    version: ClassVar[str]
    replayable: ClassVar[bool]

    @property
    def reset(self) -> Callable[..., str | Awaitable[str]]:
        """A method ``reset(self, seed, *, ...)`` that begins, and gives the first observation.

        Its ``seed`` has 63 bits, and is all that an episode's chance may follow from. Its other
        arguments are the settings of the catalogue's level, which give them by name.
        """
        ...

    def step(self, action: str) -> tuple[str, bool] | Awaitable[tuple[str, bool]]:
        """Take a turn of the policy, any text at all; the next observation, and whether it is over.

        The last observation, with which it is over, is read by nobody.
        """
        ...

    def reward(self) -> float | Awaitable[float]:
        """What was done so far is worth, in [0, 1]."""
        ...


class Chance:
    """The generators that libraries share, as one episode has left them.

    Several episodes go on side by side in a process, and some libraries' games draw from
    ``random`` or numpy at every step. Inside of it an episode draws; another one may draw whenever
    this one waits.
    """

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._seed = seed
        self._numpy: Any = None

    def __enter__(self) -> None:
        """Let the generators go on as this episode left them."""
        random.setstate(self._python)
        if numpy := numpy_random():
            if self._numpy is None:
                numpy.seed(self._seed >> 31)
            else:
                numpy.set_state(self._numpy)

    def __exit__(self, *exception: object) -> None:
        """Remember how far they have come."""
        self._python = random.getstate()
        if numpy := numpy_random():
            self._numpy = numpy.get_state()


def numpy_random() -> ModuleType | None:
    """numpy's, where this process has numpy.

    numpy itself loads it when it is first drawn from, which is too late to seed it.
    """
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None


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


MOST_ACTION = 1 << 16
"""Characters of a turn; a longer one ends the episode untold."""
MOST_OBSERVATION = 1 << 14
"""Characters; of a longer one the beginning is told, and that it was cut."""
CUT = " [cut]"

Make = Callable[[], Environment]


class EpisodeError(ValueError):
    """An environment broke its word; the message says how."""


class Episode:
    """One episode; :meth:`begin` first, then steps until it is over.

    Args:
        make: a fresh environment.
        seed: 63 bits.
        settings: of its level.

    Attributes:
        over: whether the environment has said so, or tripped.
        tripped: what it raised, if it did.
    """

    def __init__(self, make: Make, seed: int, settings: Mapping[str, Any]) -> None:
        self._make = make
        self._seed = seed
        self._settings = settings
        self._chance = Chance(seed)
        self._environment: Environment | None = None
        self.over = False
        self.tripped: Exception | None = None

    async def begin(self) -> str:
        """The first observation.

        Raises:
            EpisodeError: there is none.
        """
        with self._chance:
            self._environment = self._make()
        reset = partial(self._environment.reset, self._seed, **self._settings)
        observation = await self._told(reset)
        if not isinstance(observation, str):
            raise EpisodeError(f"reset gave {type(observation).__name__}, not a text")
        return bounded(observation)

    async def step(self, action: str) -> str:
        """Hand on a turn of the policy; the next observation, empty where it is over.

        Raises:
            EpisodeError: it is over already.
            MemoryError, RecursionError: what comes of it would depend on the machine.
        """
        if self.over or self._environment is None:
            raise EpisodeError("a turn after the end")
        if len(action) > MOST_ACTION:
            self.over = True
            return ""
        try:
            observation, self.over = _checked(await self._told(self._environment.step, action))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self.over, self.tripped, observation = True, error, ""
        return "" if self.over else bounded(observation)

    async def reward(self) -> float:
        """What was done is worth; nothing where the environment tripped.

        Raises:
            EpisodeError: it gave something that is no reward.
        """
        if self.tripped is not None or self._environment is None:
            return 0.0
        try:
            reward = await self._told(self._environment.reward)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            raise EpisodeError(f"reward fails: {error!r:.80}") from error
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise EpisodeError(f"reward gave {reward!r}, not a number")
        if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
            raise EpisodeError(f"reward gave {reward!r}, outside [0, 1]")
        return float(reward)

    async def _told(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What a method of the environment gives, or what comes of waiting for that."""
        with self._chance:
            told = method(*arguments)
        return await surrounded(awaited(told), self._chance) if isawaitable(told) else told


def bounded(observation: str) -> str:
    """An observation that can be sent: no lone surrogates, and not too long."""
    text = observation.encode(errors="replace").decode()
    if len(text) <= MOST_OBSERVATION:
        return text
    return text[: MOST_OBSERVATION - len(CUT)] + CUT


def _checked(told: Any) -> tuple[str, bool]:
    match told:
        case (str() as observation, bool() as over):
            return observation, over
    raise EpisodeError(f"step gave {told!r:.80}, not an observation and whether it is over")


def unfit(environment: type[Environment], settings: Mapping[str, Any]) -> str | None:
    """What is wrong with the settings of one level, if anything is.

    An environment that takes only some values of the right type says so itself, in a static method
    ``refusal(settings)``.

    Args:
        settings: plain values out of JSON.
    """
    takes = list(inspect.signature(environment.reset).parameters.values())[2:]
    if wrong := misfit("reset", takes, get_type_hints(environment.reset), settings):
        return wrong
    refusal = getattr(environment, "refusal", None)
    wrong = refusal(settings) if refusal else None
    return None if wrong is None else str(wrong)


def misfit(
    function: str,
    takes: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    given: Mapping[str, Any],
) -> str | None:
    """What keeps some values from being a function's arguments, if anything does.

    Args:
        function: its name.
        takes: the function's parameters; one of the kind ``**row`` takes whatever is left.
        hints: their types; only plain ones are held to.
        given: by name.
    """
    names = [each.name for each in takes]
    open_end = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes)
    if not open_end and (unknown := sorted(given.keys() - set(names))):
        return f"{unknown[0][:64]} is not known: {function} takes {', '.join(names) or 'none'}"
    needed = [
        each.name
        for each in takes
        if each.default is inspect.Parameter.empty
        and each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    if missing := [name for name in needed if name not in given]:
        return f"{missing[0]} is missing: {function} takes {', '.join(names)}"
    for name, value in given.items():
        wanted = hints.get(name)
        if wanted in (bool, int, float, str, list, dict) and not _is(value, wanted):
            return f"{name} = {value!r:.60}: {function} takes {wanted.__name__}"
    return None


def _is(value: Any, wanted: type) -> bool:
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted
