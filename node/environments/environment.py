"""The environment interface, episodes that run it, and checks of its settings."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import random
import selectors
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_type_hints


class Environment(Protocol):
    """A multi-turn task, one instance per episode; methods may be ``async``.

    Attributes:
        version: change it whenever the same seed and actions give other results.
        replayable: whether the same seed, settings and actions give the same observations, byte for
            byte, and the same reward, in every process and on every machine. This holds if all
            randomness comes from ``random.Random(seed)``, not with a clock, a network or a model.
            Only replayable episodes are shared and learned from peers.

    ``hidden`` (optional, True by default) says whether a reward may depend on what the observations
    so far do not show: cards, walls, or the random moves of an opponent. Peers can then pass luck
    off as skill, and less is learned from them.
    """

    version: ClassVar[str]
    replayable: ClassVar[bool]

    @property
    def reset(self) -> Callable[..., str | Awaitable[str]]:
        """``reset(self, seed, *, ...)`` begins and returns the first observation.

        All randomness must follow from the 63-bit ``seed``. The other arguments are the level's
        settings, by name.
        """

    def step(self, action: str) -> tuple[str, bool] | Awaitable[tuple[str, bool]]:
        """Apply a turn, any text; return an observation (unused if last) and the end."""

    def reward(self) -> float | Awaitable[float]:
        """Return the reward so far, in [0, 1]."""


class Chance:
    """One episode's state of the global random generators; episodes interleave."""

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._seed = seed
        self._numpy: Any = None

    def __enter__(self) -> None:
        random.setstate(self._python)
        if numpy := numpy_random():
            if self._numpy is None:
                numpy.seed(self._seed >> 31)
            else:
                numpy.set_state(self._numpy)

    def __exit__(self, *exception: object) -> None:
        self._python = random.getstate()
        if numpy := numpy_random():
            self._numpy = numpy.get_state()


def numpy_random() -> ModuleType | None:
    """Return ``numpy.random`` if numpy is loaded; its lazy import is too late to seed."""
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None


T = TypeVar("T")
Work = Coroutine[Any, Any, T]
Around = AbstractContextManager[Any, None]  # can be entered repeatedly, not nested
_loop: asyncio.AbstractEventLoop | None = None
_around: ContextVar[tuple[Around, ...]] = ContextVar("around", default=())
"""All contexts around the running code, outermost first."""


def is_async(environment: type[Any]) -> bool:
    methods = (getattr(environment, name, None) for name in ("reset", "step", "reward"))
    return any(inspect.iscoroutinefunction(method) for method in methods)


class EpisodeError(ValueError):
    """An environment violated its interface; the message says how."""


def finished(work: Work[T]) -> T:
    """Run a coroutine that never waits, even if an event loop already runs.

    Raises EpisodeError: it waits.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise EpisodeError("an environment waits for something, and its class does not say async")


async def awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def surrounded(work: Work[T], around: Around, outer: tuple[Around, ...] | None = None) -> T:
    """Await work inside ``around``, which it and its tasks leave while they wait.

    ``outer`` are the contexts around it, by default those of the running code.
    """
    return await _Surrounded(work, _around.get() if outer is None else outer, around)


def prepare_to_wait() -> None:
    """Create this process's event loop before its permissions are dropped."""
    global _loop
    _loop = _new_loop()


def run(work: Work[T], *, waits: bool) -> T:
    """Run work on environments, in an event loop if something ``waits``."""
    if not waits:
        return finished(work)
    if _loop:
        return _loop.run_until_complete(work)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(work)


class _Surrounded(Generic[T]):
    """Work that enters ``around`` at each step, inside the contexts around it.

    Episodes of one process take turns in its event loop, and each needs its own state of the global
    random generators. So an episode's context is left when the episode waits, and entered again
    when it continues. Tasks that it creates inherit the contexts from ``_around``.
    """

    def __init__(self, work: Work[T], outer: tuple[Around, ...], around: Around) -> None:
        self._work = work
        self._all = (*outer, around)
        self._around = around

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(self._work.send, None)
        try:
            while True:
                try:
                    awaitable = self._next_wait(step)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                try:
                    step = partial(self._work.send, (yield awaitable))
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - raised where the work waits
                    step = partial(self._work.throw, error)
        finally:
            self._work.close()

    def _next_wait(self, step: Callable[[], Any]) -> Any:
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
    contexts = _around.get()
    for number in reversed(range(len(contexts))):
        work = surrounded(work, contexts[number], contexts[:number])
    return asyncio.Task(work, loop=loop, **options)


MOST_ACTION = 1 << 16  # Characters of a turn; a longer one ends the episode unsent.
MOST_OBSERVATION = 1 << 14  # Characters; a longer observation is truncated and marked.
CUT = " [cut]"

Make = Callable[[], Environment]


class Episode:
    """One episode; ``tripped`` is the exception that its environment raised, if any.

    The environment is handed what ``read`` returns of a turn.
    """

    def __init__(
        self, make: Make, seed: int, settings: Mapping[str, Any], read: Callable[[str], str] = str
    ) -> None:
        self._make = make
        self._seed = seed
        self._settings = settings
        self._read = read
        self._chance = Chance(seed)
        self._environment: Environment | None = None
        self.over = False
        self.tripped: Exception | None = None

    async def begin(self) -> str:
        """Return the first observation; raises ``EpisodeError`` if there is none."""
        with self._chance:
            self._environment = self._make()
        reset = partial(self._environment.reset, self._seed, **self._settings)
        observation = await self._call(reset)
        if not isinstance(observation, str):
            raise EpisodeError(f"reset gave {type(observation).__name__}, not a text")
        return bounded(observation)

    async def step(self, action: str) -> str:
        """Apply a turn; return the next observation, empty if it is over.

        Raises EpisodeError: it is over already; MemoryError, RecursionError: the result would
        depend on the machine.
        """
        if self.over or self._environment is None:
            raise EpisodeError("a turn after the end")
        if len(action) > MOST_ACTION:
            self.over = True
            return ""
        try:
            text = self._read(action)
            observation, self.over = _checked(await self._call(self._environment.step, text))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - an environment's own code: `tripped` keeps it
            self.over, self.tripped, observation = True, error, ""
        return "" if self.over else bounded(observation)

    async def reward(self) -> float:
        """Return the reward, 0 after an error; raises ``EpisodeError`` if invalid."""
        if self.tripped is not None or self._environment is None:
            return 0.0
        try:
            reward = float(await self._call(self._environment.reward))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # an environment's own code may raise anything
            raise EpisodeError(f"reward fails: {error!r:.80}") from error
        if not 0.0 <= reward <= 1.0:
            raise EpisodeError(f"reward gave {reward!r}: return a number from 0 to 1")
        return reward

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with self._chance:
            result = method(*arguments)
        return await surrounded(awaited(result), self._chance) if isawaitable(result) else result


def bounded(observation: str) -> str:
    """Return an observation that can be sent: no lone surrogates, not too long."""
    text = observation.encode(errors="replace").decode()
    return text if len(text) <= MOST_OBSERVATION else text[: MOST_OBSERVATION - len(CUT)] + CUT


def _checked(result: Any) -> tuple[str, bool]:
    match result:
        case (str() as observation, bool() as over):
            return observation, over
    raise EpisodeError(f"step gave {result!r:.80}, not an observation and whether it is over")


def adapted(found: type[Any], base: type[Any], **members: Any) -> type[Environment]:
    """Return ``base`` with these members and the name and declarations of a library's class."""
    names = ("version", "replayable", "__doc__", "__module__")
    attributes = {name: getattr(found, name, None) for name in names}
    attributes["hidden"] = getattr(found, "hidden", True)
    adapter: type[Environment] = type(found.__name__, (base,), attributes | members)
    return adapter


def unfit(environment: type[Environment], settings: Mapping[str, Any]) -> str | None:
    """Return the defect of a level's settings, including ``refusal(settings)``'s."""
    params = list(inspect.signature(environment.reset).parameters.values())[1:]
    seed = params.pop(0) if params and params[0].kind <= inspect.Parameter.VAR_POSITIONAL else None
    if not seed or (seed.default is not seed.empty and "seed" not in seed.name):
        return "reset takes no seed, from which all chance has to follow: define reset(self, seed)"
    if defect := misfit("reset", params, get_type_hints(environment.reset), settings):
        return defect
    refusal = getattr(environment, "refusal", None)
    defect = refusal(settings) if refusal else None
    return None if defect is None else str(defect)


def misfit(
    function: str,
    takes: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    given: Mapping[str, Any],
) -> str | None:
    """Return why values ``given`` by name cannot be a function's arguments, if so.

    Only plain types in ``hints`` are checked. A parameter like ``**row`` accepts any others.
    """
    names = [param.name for param in takes]
    accepts_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in takes)
    if not accepts_any and (unknown := sorted(given.keys() - set(names))):
        return f"{unknown[0][:64]} is not known: {function} takes {', '.join(names) or 'none'}"
    fixed = [param for param in takes if param.kind is not inspect.Parameter.VAR_KEYWORD]
    required = [param.name for param in fixed if param.default is inspect.Parameter.empty]
    if missing := [name for name in required if name not in given]:
        return f"{missing[0]} is missing: {function} takes {', '.join(names)}"
    for name, value in given.items():
        wanted = hints.get(name)
        valid = type(value) is wanted or (wanted is float and type(value) is int)
        if wanted in (bool, int, float, str, list, dict) and not valid:
            return f"{name} = {value!r:.60}: {function} takes {wanted.__name__}"
    return None


_GRANTS = "; see sandbox.read and sandbox.network; no writing, no new processes"
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def raised(error: BaseException, most: int = 200) -> str:
    """Describe an error of a task's own code, and its line there, in at most ``most`` characters.

    The sandbox hides files and networks, and the ``repr`` of such an error lacks the file's name.
    """
    is_os = isinstance(error, OSError)
    text = f"{type(error).__name__}({str(error)!r})" if is_os else repr(error)
    lines = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and (error.filename or "<")[0] != "<":
        text, lines = f"SyntaxError({error.msg!r})", [(str(error.filename), error.lineno or 0)]
    own = (f" at {Path(f).name[-40:]}:{n}" for f, n in lines if not f.startswith((_PACKAGE, "<")))
    suffix = next(own, "") + (_GRANTS if is_os else "")
    return text[: most - len(suffix)] + suffix
