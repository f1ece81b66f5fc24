"""Trajectories of unknown peers: all honest ones are admitted, forged ones never."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from experiments.recipe.corpus import PLAYERS
from experiments.virtual_clock import VirtualClock
from node.environments.environment import Episode, finished
from node.tasks.task_set import Allowed, load_task_set, open_envs
from node.tasks.verifier.verifier import Verifier
from protocol.announcement import epoch_of, task_seed
from protocol.frame import seal
from protocol.identity import Identity
from protocol.manifest import sign_manifest, swarm_id
from protocol.rollout import Batch, Completion, Finish, Group, Segment, Writer
from swarm.admission import Admission
from swarm.common.counters import Counters
from swarm.journal import MEMORY, Journal
from swarm.reputation import Accounts
from tests.swarm.experience_parts import START
from tests.swarm.network_parts import CREATOR, manifest

SPECS = load_task_set("games")
SOURCES = open_envs(SPECS, Allowed())[0]
NAMES = tuple(SOURCES)
EPOCH_SECONDS = 3600.0  # One time slot covers the tests on a busy machine.
NOW = epoch_of(START, EPOCH_SECONDS)
HONEST, FORGED, SIZE = 10_000, 1_000, 8


class Reader:
    """A node's admission, with the worker that verifies texts of unknown peers."""

    def __init__(self, verifier: Verifier) -> None:
        agreed = manifest(catalogue=SPECS, epoch_seconds=EPOCH_SECONDS)
        self.swarm_id = swarm_id(sign_manifest(agreed, CREATOR))
        self.counters = Counters()
        clock = VirtualClock(START)
        journal = Journal(MEMORY, clock)
        stores = (Accounts(journal, clock), journal, clock, self.counters)
        self._admission = Admission(agreed, self.swarm_id, verifier, *stores, threaded=False)

    def admit(self, author: Identity, *groups: Group) -> int:
        batch = Batch(1, 5, START, "tiny", b"\x02" * 32, 1.0, 64, groups)
        frame = seal(batch, author, self.swarm_id)
        return len(self._admission.examine(frame, author.author))


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(SPECS, outside=True) as opened:
        yield opened


@pytest.fixture
def reader(verifier: Verifier) -> Reader:
    return Reader(verifier)


def segments(seen: list[str]) -> tuple[Segment, ...]:
    """Return the texts as segments, without the first observation and the last."""
    return tuple(
        Segment(Writer.ENVIRONMENT if n % 2 else Writer.POLICY, text)
        for n, text in enumerate(seen[1:-1])
    )


def trajectory(env: str, level: int, seed: int, rng: random.Random) -> Completion:
    """Play one episode as an honest author's policy might."""
    episode, seen = episode_of(env, level, seed)
    whole = rng.random() < 0.9
    while not episode.over and (whole or len(seen) < 4):
        act = PLAYERS[env].any if rng.random() < 0.4 else PLAYERS[env].good
        seen.append(act(seen, rng))
        seen.append(finished(episode.step(seen[-1])))
    finish = Finish.STOP if episode.over else Finish.LENGTH
    return Completion(segments(seen), finished(episode.reward()), finish)


def group(author: Identity, index: int, rng: random.Random, size: int) -> Group:
    env = NAMES[index % len(NAMES)]
    level = rng.randrange(SOURCES[env].levels)
    seed = task_seed(author.author, NOW, index)
    done = tuple(trajectory(env, level, seed, rng) for _ in range(size))
    return Group(env, level, NOW, index, done)


def test_gate_admits_ten_thousand_honest_trajectories(reader: Reader) -> None:
    rng = random.Random(0)
    admitted = 0
    for number in range(HONEST // SIZE // 5):
        author = Identity.from_seed(number.to_bytes(32, "big"))
        groups = [group(author, index, rng, SIZE) for index in range(5)]
        admitted += reader.admit(author, *groups)
    assert admitted * SIZE == HONEST
    assert reader.counters.snapshot() == {"admitted": admitted}


Forgery = Callable[[Completion, random.Random], Completion]


def another_observation(done: Completion, rng: random.Random) -> Completion:
    place = rng.randrange(1, len(done.segments), 2)
    told = replace(done.segments[place], text=done.segments[place].text + rng.choice(" .\u200b1"))
    return replace(done, segments=(*done.segments[:place], told, *done.segments[place + 1 :]))


def of(change: Callable[[list[Segment]], list[Segment]]) -> Forgery:
    return lambda done, rng: replace(done, segments=tuple(change(list(done.segments))))


FORGERIES: dict[str, Forgery] = {
    "another observation": another_observation,
    "another reward": lambda done, rng: replace(done, reward=0.5 if done.reward in (0, 1) else 1.0),
    "another order": of(lambda s: [s[2], s[1], s[0], *s[3:]]),
    "a turn dropped": of(lambda s: s[:-2]),
    "the first turn dropped": of(lambda s: s[2:]),
    "a turn added": of(lambda s: [*s, Segment(Writer.ENVIRONMENT, "higher"), s[-1]]),
    "two turns of the policy": of(lambda s: [s[0], *s[2:]]),
    "the environment last": of(lambda s: s[:-1]),
}


def episode_of(env: str, level: int, seed: int) -> tuple[Episode, list[str]]:
    source = SOURCES[env]
    assert source.environment is not None
    episode = source.environment.episode(source.build(level, seed).entry)
    return episode, [finished(episode.begin())]


def reproduces(env: str, level: int, seed: int, told: Completion) -> bool:
    episode, seen = episode_of(env, level, seed)
    for action in [each.text for each in told.segments if each.writer is Writer.POLICY]:
        if episode.over:
            return False
        seen += [action, finished(episode.step(action))]
    true = Completion(segments(seen), finished(episode.reward()), Finish.STOP)
    return episode.over and told == true


def forgeable(author: Identity, rng: random.Random) -> Group:
    """Return a group whose first trajectory is complete and has differing turns."""
    for index in range(64):
        sampled = group(author, index, rng, 2)
        first = sampled.completions[0]
        turns = [segment.text for segment in first.segments]
        if first.finish is Finish.STOP and len(turns) > 4 and turns[0] != turns[2]:
            return sampled
    raise AssertionError("no long trajectory in 64 draws")


@pytest.mark.parametrize("name", FORGERIES)
def test_gate_admits_only_reproducible_trajectories(reader: Reader, name: str) -> None:
    forge, rng = FORGERIES[name], random.Random(name)
    count = FORGED // len(FORGERIES)
    for number in range(count):
        mallory = Identity.from_seed((1 << 200 | number).to_bytes(32, "big"))
        sampled = forgeable(mallory, rng)
        forged = forge(sampled.completions[0], rng)
        seed = task_seed(mallory.author, NOW, sampled.index)
        told = replace(sampled, completions=(forged, *sampled.completions[1:]))
        # A guessing game without one useless guess is a different game that is still valid.
        assert reader.admit(mallory, told) == reproduces(sampled.env, sampled.level, seed, forged)
    counts = reader.counters.snapshot()
    admitted = counts.pop("admitted", 0)
    assert admitted < 0.5 * count < sum(counts.values())


def test_gate_refuses_trajectory_from_another_author(reader: Reader) -> None:
    anna, mallory = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2))
    sampled = forgeable(anna, random.Random(3))
    assert reader.admit(mallory, sampled) == 0
    assert reader.admit(anna, sampled) == 1


def test_oversized_trajectories_do_not_affect_other_authors(reader):
    """Flo fills 63 segments with 1,000 characters each."""
    flo = Identity.from_seed(b"o" * 32)
    done = Completion(segments(["9" * 1000] * 65), 0.0, Finish.STOP)
    assert reader.admit(flo, Group("guess", 0, NOW, 0, (done, done))) == 0
    anna = Identity.from_seed(b"a" * 32)
    assert reader.admit(anna, group(anna, 0, random.Random(0), SIZE)) == 1
