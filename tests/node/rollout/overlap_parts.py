"""An engine of scripted lengths that advances per call, and a node around it."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from experiments.virtual_clock import VirtualClock
from node.engines.engine import Sample, Sampling, SamplingRequest
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.async_generator import AsyncRolloutGenerator, StalenessWindow
from node.rollout.generator import Generator, TaskIndexes
from node.rollout.group_writer import UnfinishedGroups
from node.tasks.curriculum import TaskSampler
from node.tasks.scorer import Scorer
from node.trajectories.trajectory import TurnLimits
from protocol.rollout import Finish, Tokens
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.journal import Journal
from swarm.verification import Scores
from tests.support import random_policy

GROUP = 2
CAP = 40
LETTERS = b"abcdefgh"
LIMITS = TurnLimits(turns=4, turn_tokens=3, tokens=12)
SUMS = (("sums", 0), ("sums", 1))


class Crash(BaseException):
    """Simulates the death of the process."""


class VirtualEngine:
    """Samples one token of every request per poll.

    A completion depends on its prompt, on how often that prompt was requested before, and on the
    policy version of each token. Lengths are log-normal.

    Args:
        before: Called with the name of each method when it is called.
    """

    def __init__(
        self, policy: Policy, before: Callable[[str], None] = lambda call: None, *, seed: int = 0
    ) -> None:
        self.version = policy.version
        self.running: dict[int, tuple[SamplingRequest, int]] = {}
        self.submitted: list[SamplingRequest] = []
        self.before = before
        self._policy = policy
        self._seed = seed
        self._times: dict[tuple[int, ...], int] = {}

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        return [
            [
                self._written(SamplingRequest(0, tuple(prompt)), self._length(prompt))
                for _ in range(n)
            ]
            for prompt in prompts
        ]

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        self.before("submit")
        for trajectory in trajectories:
            assert trajectory.key not in self.running
            begun = trajectory.tokens
            length = max(self._length(trajectory.prompt), len(begun.ids) + 1)
            self.running[trajectory.key] = trajectory, length
        self.submitted += trajectories

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        self.before("poll")
        done = []
        for key, (trajectory, length) in list(self.running.items()):
            grown = replace(trajectory, tokens=self._grown(trajectory))
            self.running[key] = grown, length
            if len(grown.tokens.ids) == length:
                del self.running[key]
                done.append((key, self._written(grown, length)))
        return done

    def abort(self, keys: Sequence[int]) -> None:
        """Do nothing: no state is kept."""

    def nudge(self) -> None:
        """Do nothing: this engine never waits."""

    def pause(self) -> list[tuple[int, Tokens]]:
        self.before("pause")
        pending = [(key, trajectory.tokens) for key, (trajectory, _) in self.running.items()]
        self.running.clear()
        return pending

    def update(self, policy: Policy) -> None:
        self.before("update")
        self.version = policy.version

    def sleep(self) -> None:
        assert not self.running
        self.before("sleep")

    def close(self) -> None:
        pass

    def _length(self, prompt: Sequence[int]) -> int:
        nth = self._times[tuple(prompt)] = self._times.get(tuple(prompt), 0) + 1
        draw = random.Random(f"{self._seed}/{tuple(prompt)}/{nth}")
        return min(CAP, max(1, int(draw.lognormvariate(1.5, 1.0))))

    def _written(self, trajectory: SamplingRequest, length: int) -> Sample:
        while len(trajectory.tokens.ids) < length:
            trajectory = replace(trajectory, tokens=self._grown(trajectory))
        begun, finish = trajectory.tokens, Finish.LENGTH if length == CAP else Finish.STOP
        return Sample(begun, finish, self._policy.decode(begun.ids))

    def _grown(self, trajectory: SamplingRequest) -> Tokens:
        begun = trajectory.tokens
        text = repr((trajectory.prompt, len(begun.ids), self.version, self._seed))
        token = sha256(text.encode()).digest()[0] % len(LETTERS)
        return Tokens(
            (*begun.ids, self._policy.encode_prompt(chr(LETTERS[token]))[-1]),
            (*begun.logprobs, -2.0 - token / 8),
            (*begun.versions, self.version),
        )


class Teacher(Scorer):
    """Verifier with the seed in its prompts; it rewards every second answer."""

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        return [f"{task.seed % 10**9}?" for task in tasks]

    def verify(self, task: TaskRef, texts: Sequence[str]) -> Scores:
        return Scores("?", tuple(float(number % 2) for number in range(len(texts))))


class AtOnce(Executor):
    """Runs work before ``submit`` returns, so that runs do not depend on time."""

    def submit(self, work, *arguments) -> Future:
        future: Future = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future


@dataclass
class Parts:
    """A node without a network, around a virtual or a real engine."""

    policy: Policy
    engine: VirtualEngine
    journal: Journal
    tasks: Generator
    counters: Counters
    sampling: Sampling
    teacher: Scorer

    def overlapping(
        self,
        staleness: int,
        *,
        oversample: float = 0.0,
        version: int = 0,
        threads: Executor | None = None,
    ) -> AsyncRolloutGenerator:
        self.unfinished = UnfinishedGroups(self.journal)
        self.window = StalenessWindow(staleness, oversample=oversample, version=version)
        return AsyncRolloutGenerator(
            self.tasks,
            window=self.window,
            unfinished=self.unfinished,
            sleep_mode=oversample > 0,
            threads=threads or AtOnce(),
        )

    def begun(self, staleness: int = 1, **how: Any) -> AsyncRolloutGenerator:
        """Return a source that has generated the groups of its first update."""
        source = self.overlapping(staleness, **how)
        source.generate(3, Stopwatch())
        return source


def parts(
    journal: Journal, engine=VirtualEngine, teacher=None, *, version: int = 0, levels=SUMS
) -> Parts:
    """Build new parts over the state in the journal."""
    policy = random_policy(hidden=32, layers=1)
    policy.version = version
    made, counters, teacher = engine(policy), Counters(), teacher or Teacher()
    sampling = Sampling(max_new_tokens=CAP)
    tasks = Generator(
        author=bytes(32),
        policy=policy,
        engine=made,
        verifier=teacher,
        sampler=TaskSampler(levels, {}, random.Random(0)),
        indexes=TaskIndexes(journal, VirtualClock(0.0), 60.0, 1 << 20, random.Random(0)),
        sampling=sampling,
        group_size=GROUP,
        counters=counters,
        limits=LIMITS,
    )
    return Parts(policy, made, journal, tasks, counters, sampling, teacher)
