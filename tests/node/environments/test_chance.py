"""Chance is an episode's own, though all episodes of a process draw from the same generators."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

import numpy
import pytest

from node.environments.environment import Episode, run


class Waits:
    """Lets others go on between any two draws, by itself and in what it begins."""

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    async def reset(self, seed: int) -> str:
        return await drawn()

    async def step(self, action: str) -> tuple[str, bool]:
        bounded = await asyncio.wait_for(drawn(), 20)
        both = await asyncio.gather(drawn(), drawn())
        return f"{bounded} {both} {await drawn()}", False

    async def reward(self) -> float:
        await asyncio.sleep(0)
        return random.random()


async def drawn() -> str:
    first = random.random()
    await asyncio.sleep(0)
    return f"{first} {random.random()} {numpy.random.random()}"


async def played(seed: int) -> list[str | float]:
    episode = Episode(Waits, seed, {})
    return [await episode.begin(), *[await episode.step("") for _ in "ab"], await episode.reward()]


async def together(seeds: range) -> list[list[str | float]]:
    return await asyncio.gather(*map(played, seeds))


def test_episodes_that_wait_side_by_side_draw_what_they_draw_alone() -> None:
    seeds = range(5)
    alone = [run(played(seed), waits=True) for seed in seeds]
    assert run(together(seeds), waits=True) == alone
    assert len({str(each) for each in alone}) == len(seeds)


def test_an_episode_that_is_given_up_while_it_waits_leaves_the_others_their_chance() -> None:
    async def one_given_up() -> list[str | float]:
        other = asyncio.create_task(played(1))
        await asyncio.sleep(0)
        other.cancel()
        found = await played(2)
        with pytest.raises(asyncio.CancelledError):
            await other
        return found

    assert run(one_given_up(), waits=True) == run(played(2), waits=True)
