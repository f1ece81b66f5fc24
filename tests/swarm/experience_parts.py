"""Small real values and a manual clock for the tests of shared experience."""

import asyncio
from collections.abc import Sequence

from experiments.virtual_clock import VirtualClock
from protocol.rollout import Completion, Finish, Group, Segment, Tokens, Writer, encode_group
from swarm.groups import GroupKey, PooledGroup
from swarm.pool import Pool

ANNA = b"\xaa" * 32
BEN = b"\xbb" * 32
START = 1_700_000_000.0


def wait(clock: VirtualClock, seconds: float) -> None:
    """Advance a clock on which nothing sleeps."""
    asyncio.run(clock.advance(seconds))


def completion(text: str, reward: float, *, tokens: bool = True) -> Completion:
    ids = tuple(ord(c) for c in text)
    token_data = Tokens(ids, (-0.5,) * len(ids), (3,) * len(ids)) if tokens else None
    return Completion((Segment(Writer.POLICY, text, token_data),), reward, Finish.STOP)


def group(
    index: int = 0,
    rewards: Sequence[float] = (1.0, 0.0),
    *,
    epoch: int = 7,
    env: str = "chain_sum",
    level: int = 0,
    texts: Sequence[str] = (),
    tokens: bool = True,
) -> Group:
    texts = texts or [f"answer {i}" for i in range(len(rewards))]
    pairs = zip(texts, rewards, strict=True)
    completions = tuple(completion(text, reward, tokens=tokens) for text, reward in pairs)
    return Group(env, level, epoch, index, completions)


def pooled(index=0, rewards=(1.0, 0.0), *, author=ANNA, received=START, **options) -> PooledGroup:
    """Return a group as admission returns it; ``options`` are those of ``group``."""
    value = group(index, rewards, **options)
    return PooledGroup(
        author=author,
        encoded=encode_group(value),
        group=value,
        prompt="1 + 1 =",
        encoding=b"\x01" * 32,
        policy_step=3,
        received=received,
    )


def lineage(pool: Pool, step: int) -> list[GroupKey]:
    """Return the keys of an update's groups; local ones have an empty author."""
    query = "SELECT author, epoch, number FROM used WHERE step=? AND trained ORDER BY 1, 2, 3"
    return [GroupKey(*row) for row in pool.journal.read(query, (step,))]
