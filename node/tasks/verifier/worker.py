"""Worker process that builds tasks, plays their turns and scores answers.

It reads requests from the socket on standard input and ends with it. It first drops every privilege
that it does not need: an answer that misbehaves affects only this process.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from types import FrameType
from typing import Any

from node.environments.environment import (
    Episode,
    EpisodeError,
    finished,
    prepare_to_wait,
    run,
    surrounded,
)
from node.environments.own_file import NotReplayed
from node.errors import TaskSetError
from node.tasks.sandbox.confine import OUT_OF_MEMORY, Confinement, confine
from node.tasks.scorer import Answered, OpenEnv, OverLimit, fault_of, score
from node.tasks.task import ScoringError, Task, TaskError, TaskSource, kept
from node.tasks.task_set import Allowed, open_envs
from node.tasks.verifier.text_copies import CopyLimits, score_apart
from protocol.manifest import EnvSpec
from swarm.common.child_process import Channel, ChannelError, take_over_stdin
from swarm.groups import Split, TaskRef
from swarm.verification import (
    CRASHED,
    NOT_REPLAYED,
    TIMEOUT,
    UNKNOWN_ENV,
    WORKER_LOST,
    Answer,
    TrajectoryTexts,
)


class OutOfTime(Exception):  # noqa: N818 - what happened
    """A turn used up its CPU time."""


def allow_cpu(seconds: float) -> None:
    """Have the kernel end this process after ``seconds`` more (whole) CPU seconds."""
    if os.name != "posix":
        return  # the node ends it by wall time
    import resource

    used = math.ceil(sum(os.times()[:2]))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + math.ceil(seconds), hard))


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise OverLimit in this process's main thread after ``seconds`` of its CPU time."""
    if not hasattr(signal, "setitimer"):
        yield  # the node ends this process by wall time
        return

    def stop(_: int, frame: FrameType | None) -> None:
        # A module whose import is interrupted stays half loaded, and gives other rewards.
        while frame and frame.f_globals.get("__name__") != "importlib._bootstrap":
            frame = frame.f_back
        if frame is None:
            raise OverLimit(f"an answer took more than {seconds:g} s of CPU time")

    previous = signal.signal(signal.SIGVTALRM, stop)
    # Again and again: an exception in a finalizer is lost.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def refused(error: Exception) -> dict[str, Any]:
    match error:
        case OutOfTime() | TimeoutError():
            reason = TIMEOUT
        case OSError():
            reason = WORKER_LOST
        case NotReplayed():
            reason = NOT_REPLAYED
        case TaskError():
            reason = UNKNOWN_ENV
        case _:
            # Recursion limits differ between interpreters, so they must not decide a result.
            reason = CRASHED
    return {"refused": reason, "detail": str(error)}


MOST_LIVE = 4096  # Episodes; beyond, the least recently stepped one is dropped.


@dataclass(slots=True)
class _Live:
    task: TaskRef
    episode: Episode
    actions: tuple[str, ...] = ()
    observation: str = ""


class LiveEpisodes:
    """Episodes that continue where they stopped; a missing one is replayed."""

    def __init__(self) -> None:
        self._live: OrderedDict[int, _Live] = OrderedDict()

    async def move(
        self, key: int, source: TaskSource, task: TaskRef, actions: Sequence[str], *, final: bool
    ) -> Answered:
        """Take the last turn, or all that are missing, and return the response.

        Raises NotReplayed: the episode is missing and not replayable; TaskError: the task cannot be
        built or is single-turn; EpisodeError: the environment violates its interface.
        """
        live = self._live.pop(key, None)
        count = len(live.actions) if live else 0
        if live is None or (live.task, live.actions) != (task, tuple(actions[:count])):
            environment = source.environment
            if len(actions) > 1 and environment is not None and not environment.replayable:
                raise NotReplayed("its episode is lost, and it cannot be played again")
            live = _Live(task, await source.begin(task))
        for action in actions[len(live.actions) :]:
            live.observation = await live.episode.step(action)
        if live.episode.over or final:
            reward, fault = await live.episode.reward(), fault_of(live.episode.tripped)
            return Answered("", live.episode.over, reward, fault)
        live.actions = tuple(actions)
        self._live[key] = live
        while len(self._live) > MOST_LIVE:
            self._live.popitem(last=False)
        return Answered(live.observation, False, None)


_IDLE_SECONDS = 0.01  # Delay before reporting idle: mostly the next turn starts first.

Request = dict[str, Any]
Reply = dict[str, Any]


class TurnServer:
    """Server that answers each turn; ``cpu_seconds`` is the limit per turn."""

    def __init__(
        self, channel: Channel, sources: Mapping[str, TaskSource], cpu_seconds: int
    ) -> None:
        self._channel = channel
        self._sources = sources
        self._cpu_seconds = cpu_seconds
        self._live = LiveEpisodes()
        self._queued: dict[int, Request] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}  # turns of asynchronous environments
        self._reported: int | None = None  # the turn that runs, as the node knows it
        self._idle_report: asyncio.TimerHandle | None = None
        self._arrival = asyncio.Event()
        self._failed: BaseException | None = None

    async def serve(self, first: Request) -> None:
        """Take turns until the channel ends with ``ChannelError``, or ``MemoryError``."""
        self._handle(first)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._arrival.set)
        while True:
            self._arrival.clear()
            for request in self._channel.arrived():
                self._handle(request)
            if self._failed:
                raise self._failed
            if self._queued:
                self._start_next()
                await asyncio.sleep(0)  # let waiting turns continue
            else:
                await self._arrival.wait()

    def _handle(self, request: Request) -> None:
        if "turn" in request:
            self._queued[request["turn"]] = request
            return
        for number in request["drop"]:
            self._queued.pop(number, None)
            if task := self._waiting.get(number):
                task.cancel()
        self._report(None, again=True)

    def _start_next(self) -> None:
        number = next(iter(self._queued))
        request = self._queued.pop(number)
        on_begin = partial(self._report, number)
        context = _Running(on_begin, self._report_idle_later, self._cpu_seconds)
        work = surrounded(self._played(request), context)
        environment = self._sources[request["task"][0]].environment
        if environment is None or not environment.waits:
            try:
                reply = finished(work)
            except EpisodeError as error:
                reply = refused(error)
            self._answer(number, reply)
            return
        task = asyncio.create_task(self._await(number, work, request["seconds"]))
        self._waiting[number] = task
        task.add_done_callback(lambda done: self._ended(number, done))

    async def _await(self, number: int, work: Coroutine[Any, Any, Reply], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                reply = await work
        except (OutOfTime, TimeoutError) as error:
            reply = refused(error)
        self._answer(number, reply)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._waiting.pop(number)
        if not task.cancelled() and (error := task.exception()):
            self._failed = error
            self._arrival.set()

    async def _played(self, request: Request) -> Reply:
        env, level, seed, split = request["task"]
        task = TaskRef(env, level, seed, Split(split))
        source, actions, final = self._sources[env], request["actions"], request["final"]
        try:
            response = await self._live.move(request["key"], source, task, actions, final=final)
        except (EpisodeError, NotReplayed, RecursionError, TaskError) as error:
            return refused(error)
        return asdict(response)

    def _answer(self, number: int, reply: Reply) -> None:
        self._channel.send({**reply, "turn": number})
        if self._reported == number:
            self._reported = None

    def _report(self, number: int | None, *, again: bool = False) -> None:
        """Report the current turn unless the node knows it."""
        if number != self._reported or again:
            self._channel.send({"at": number})
            self._reported = number

    def _report_idle_later(self) -> None:
        if self._idle_report is None:
            loop = asyncio.get_running_loop()
            self._idle_report = loop.call_later(_IDLE_SECONDS, self._report_idle)

    def _report_idle(self) -> None:
        self._idle_report = None
        self._report(None)


@dataclass(slots=True)
class _Running:
    """Context of a turn while it runs, not while it waits: reports it and limits its CPU time."""

    begun: Callable[[], None]
    left: Callable[[], None]
    seconds: float  # of CPU time that the turn has left
    since: float = 0.0

    def __enter__(self) -> None:
        if self.seconds <= 0:
            raise OutOfTime("a turn took too much CPU time")
        self.begun()
        allow_cpu(self.seconds)
        self.since = time.process_time()

    def __exit__(self, *exception: object) -> None:
        self.seconds -= time.process_time() - self.since
        self.left()


ANSWER_SHARE = 0.25  # of a trajectory's CPU time, for one answer in one turn
_OPENING_CPU_SECONDS = 60


def main() -> None:
    channel = take_over_stdin()
    options = channel.receive()
    sandbox = Confinement(**options["confinement"])
    prepare_to_wait()
    confine(sandbox)
    allow_cpu(_OPENING_CPU_SECONDS)
    try:
        # Nothing else uses the generators here, so requests need not restore them.
        with kept():
            limits = options["cpu_seconds"], options["text_seconds"], options["slow_part"]
            _TaskServer(channel, _open(channel), *limits, bytes.fromhex(sandbox.once)).serve()
    except ChannelError:
        return
    except MemoryError:
        # The process is unreliable now, including its exit handlers.
        os._exit(OUT_OF_MEMORY)


def _open(channel: Channel) -> dict[str, TaskSource]:
    request = channel.receive()
    specs = [EnvSpec(**{**spec, "levels": tuple(spec["levels"])}) for spec in request["specs"]]
    try:
        sources, closed = open_envs(specs, Allowed(**request["allowed"]))
    except TaskSetError as error:
        channel.send({"error": str(error)})
        raise SystemExit(1) from error
    # Standard error reports a failed start; the node does not read it after that.
    os.dup2(0, 2)
    envs = {name: asdict(OpenEnv.of(source)) for name, source in sources.items()}
    channel.send({"envs": envs, "closed": closed})
    return sources


def _limited(texts: Sequence[Any], seconds: float) -> Iterator[Answer]:
    """Decode answers, each of which has its own CPU time, independent of the others."""
    for text in texts:
        single = isinstance(text, str)
        # The kernel ends what does not return to Python, where ``cpu_limit`` would stop it.
        allow_cpu(ANSWER_SHARE * seconds if single else seconds)
        yield text if single else TrajectoryTexts(tuple(text[0]), text[1])


@dataclass(frozen=True, slots=True)
class _TaskServer:
    """Server of requests; ``once`` is the program of a process that scores one text.

    An answer that takes ``slow_part`` of its CPU time is slow.
    """

    channel: Channel
    sources: dict[str, TaskSource]
    cpu_seconds: int
    text_seconds: float
    slow_part: float
    once: bytes

    def serve(self) -> None:
        # Forked copies share memory until one writes to it, as garbage collection does.
        gc.freeze()
        while True:
            request = self.channel.receive()
            if "tasks" in request:
                allow_cpu(self.cpu_seconds)
                self.channel.send(self._built(**request))
            elif "turn" in request:
                turns = TurnServer(self.channel, self.sources, self.cpu_seconds)
                run(turns.serve(request), waits=True)
            else:
                self._verify(request)

    def _verify(self, request: dict[str, Any]) -> None:
        """Reply to each group when scored; stop at a refusal or after some seconds."""
        deadline = time.monotonic() + request["seconds"]
        remaining = len(request["groups"])
        while remaining:
            reply = self._scored(*request["groups"][-remaining])
            remaining = 0 if "refused" in reply or time.monotonic() >= deadline else remaining - 1
            self.channel.send({**reply, "last": not remaining})

    def _built(self, tasks: list[list[Any]], completion: str | None = None) -> Reply:
        try:
            built = [self._build(task) for task in tasks]
            if completion is not None:
                read = self.sources[built[0].ref.env].read(built[0], completion)
                right = built[0].entry.get("answer")
                return {"read": read, "right": right if isinstance(right, str) else None}
            completions = [self.sources[item.ref.env].written(item) for item in built]
            return {"prompts": [item.prompt for item in built], "written": completions}
        except (TaskError, RecursionError) as error:
            return refused(error)

    def _scored(self, coordinates: list[Any], texts: list[Any]) -> Reply:
        # No text is to blame for a slow question, which ends by wall time.
        allow_cpu(_OPENING_CPU_SECONDS)
        try:
            task = self._build(coordinates)
            source, seconds = self.sources[task.ref.env], self.cpu_seconds
            if source.questions.evaluates_text:
                times = seconds, self.text_seconds, self.slow_part * seconds
                scores = score_apart(source, task, texts, CopyLimits(self.once, *times))
            else:
                limit = ANSWER_SHARE * seconds
                slow = self.slow_part * (limit if source.environment is None else seconds)
                answers = _limited(texts, seconds)
                scores = score(source, task, answers, lambda: cpu_limit(limit), slow)
        except (NotReplayed, OSError, ScoringError, TaskError, RecursionError) as error:
            return refused(error)
        return {"prompt": task.prompt, **asdict(scores)}

    def _build(self, task: Sequence[Any]) -> Task:
        env, level, seed, split = task
        return self.sources[env].build(level, seed, Split(split))


if __name__ == "__main__":
    main()
