"""Environment turns in a worker: one by one, or concurrent if asynchronous.

The worker reports its current turn, so the node knows which one hangs or crashes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from node.environments.environment import Episode, EpisodeError, finished, surrounded
from node.environments.own_file import NotReplayed
from node.tasks.scorer import Answered
from node.tasks.task import TaskError, TaskSource
from node.tasks.verifier.isolated_scoring import OutOfTime, allow_cpu, refused
from swarm.common.child_process import Channel
from swarm.groups import Split, TaskRef

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
        known = len(live.actions) if live else 0
        if live is None or (live.task, live.actions) != (task, tuple(actions[:known])):
            environment = source.environment
            if len(actions) > 1 and environment is not None and not environment.replayable:
                raise NotReplayed("its episode is lost, and it cannot be played again")
            live = _Live(task, await source.begin(task))
        for action in actions[len(live.actions) :]:
            live.observation = await live.episode.step(action)
        if live.episode.over or final:
            return Answered("", live.episode.over, await live.episode.reward())
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
        self._asked: dict[int, Request] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._reported: int | None = None
        self._idle: asyncio.TimerHandle | None = None
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
            if self._asked:
                self._begin()
                await asyncio.sleep(0)  # let waiting turns continue
            else:
                await self._arrival.wait()

    def _handle(self, request: Request) -> None:
        if "turn" in request:
            self._asked[request["turn"]] = request
            return
        for number in request["drop"]:
            self._asked.pop(number, None)
            if waiting := self._waiting.get(number):
                waiting.cancel()
        self._report(None, again=True)

    def _begin(self) -> None:
        number = next(iter(self._asked))
        request = self._asked.pop(number)
        begun = partial(self._report, number)
        attention = _Attention(begun, self._report_idle_later, self._cpu_seconds)
        work = surrounded(self._taken(request), attention)
        environment = self._sources[request["task"][0]].environment
        if environment is None or not environment.waits:
            self._answer(number, finished(work))
            return
        waiting = asyncio.create_task(self._wait(number, work, request["seconds"]))
        self._waiting[number] = waiting
        waiting.add_done_callback(lambda done: self._ended(number, done))

    async def _wait(self, number: int, work: Coroutine[Any, Any, Reply], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                reply = await work
        except (OutOfTime, TimeoutError) as error:
            reply = refused(error)
        self._answer(number, reply)

    def _ended(self, number: int, waiting: asyncio.Task[None]) -> None:
        self._waiting.pop(number)
        if not waiting.cancelled() and (error := waiting.exception()):
            self._failed = error
            self._arrival.set()

    async def _taken(self, request: Request) -> Reply:
        env, level, seed, split = request["task"]
        task = TaskRef(env, level, seed, Split(split))
        source, actions, final = self._sources[env], request["actions"], request["final"]
        try:
            answered = await self._live.move(request["key"], source, task, actions, final=final)
        except (EpisodeError, NotReplayed, RecursionError, TaskError) as error:
            return refused(error)
        return asdict(answered)

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
        if self._idle is None:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(_IDLE_SECONDS, self._report_idle)

    def _report_idle(self) -> None:
        self._idle = None
        self._report(None)


@dataclass(slots=True)
class _Attention:
    """Context of a turn while it runs: reports it and limits its total CPU time."""

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
