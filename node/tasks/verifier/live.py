"""Episodes that a worker has going, one a trajectory that is being written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from node.environments.episode import Episode
from node.environments.replay import NotReplayed
from node.tasks.moves import Answered
from node.tasks.task import TaskSource
from swarm.groups import TaskRef

MOST_LIVE = 4096
"""Episodes; of more the one that was stepped longest ago is let go."""


@dataclass(slots=True)
class _Live:
    """An episode, and the turns that it has taken."""

    task: TaskRef
    episode: Episode
    actions: tuple[str, ...] = ()
    observation: str = ""

    def leads_to(self, task: TaskRef, actions: Sequence[str]) -> bool:
        """Whether these turns of this task go on from here."""
        return self.task == task and self.actions == tuple(actions[: len(self.actions)])


class LiveEpisodes:
    """Takes turns in episodes, each where it was left; one that is not here is played again."""

    def __init__(self) -> None:
        self._live: OrderedDict[int, _Live] = OrderedDict()

    async def move(
        self, key: int, source: TaskSource, task: TaskRef, actions: Sequence[str], *, final: bool
    ) -> Answered:
        """Take the last of some turns, or all that are missing; what comes of it.

        Args:
            source: of the task.

        Raises:
            NotReplayed: the episode is not here, and cannot be played again.
            TaskError: the task cannot be built, or is not played.
            EpisodeError: the environment breaks its word.
        """
        live = self._live.pop(key, None)
        if live is None or not live.leads_to(task, actions):
            live = await _begun(source, task, actions)
        for action in actions[len(live.actions) :]:
            live.observation = await live.episode.step(action)
        if live.episode.over or final:
            return Answered("", live.episode.over, await live.episode.reward())
        live.actions = tuple(actions)
        self._live[key] = live
        while len(self._live) > MOST_LIVE:
            self._live.popitem(last=False)
        return Answered(live.observation, False, None)


async def _begun(source: TaskSource, task: TaskRef, actions: Sequence[str]) -> _Live:
    environment = source.environment
    if len(actions) > 1 and environment is not None and not environment.replayable:
        raise NotReplayed("its episode is lost, and it cannot be played again")
    return _Live(task, await source.begin(task))
