"""The interface of a rollout engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from node.engines.backend import Job, Written
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    The whole vocabulary is sampled from: top-k and top-p would cut the support that importance
    weights need.

    Attributes:
        temperature: divides the logits; above 0.
        max_new_tokens: length cap of a completion, its end-of-sequence token included.
        greedy: take the most probable token; log-probs are still those at ``temperature``.
        seed: begins a stream of chance for one call of :meth:`RolloutEngine.generate`: whatever was
            drawn before, the same weights write the same, and what is drawn later does not change.
            Left out, the engine's own goes on. Engines in processes of their own have one stream,
            as their order of draws depends on when jobs come.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 64
    greedy: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature = {self.temperature} must be above 0; for the most probable tokens "
                "set greedy"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens = {self.max_new_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled completion.

    Attributes:
        tokens: as they were sampled; versions never decrease.
        finish: stopped by itself, or cut at the length cap.
        text: the tokens decoded, special ones left out.
    """

    tokens: Tokens
    finish: Finish
    text: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One completion to be written, or to be gone on with.

    Attributes:
        key: names it among those that an engine has at a time.
        prompt: token ids.
        tokens: what is written already.
        stream: whose it is; each asks for its own with :meth:`RolloutEngine.poll`.
        lasts: another turn may follow, submitted under the same key with a prompt that begins with
            this one and what is written now: until :meth:`RolloutEngine.forget` the engine keeps
            what it can of what it has read, so that it reads on from there.
    """

    key: int
    prompt: tuple[int, ...]
    tokens: Tokens = field(default_factory=Tokens)
    stream: int = 0
    lasts: bool = False


class RolloutEngine(Protocol):
    """Samples completions from a policy.

    Single trajectories are written while they are polled for, or beside their owner where the
    engine has a process of its own; then none of its calls but :meth:`generate` and :meth:`rest`
    waits for a trajectory, :meth:`poll` excepted as long as it is told to. All of them but
    :meth:`nudge` and :meth:`update` belong to one thread.
    """

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """``n`` completions of each prompt (token ids), in the order of ``prompts``.

        A completion ends early where prompt and completion fill the policy's context.

        Raises:
            ValueError: an empty prompt, or one that leaves no room for a completion.
        """

    def submit(self, trajectories: Sequence[Trajectory], sampling: Sampling) -> None:
        """Begin to write, or to go on with, these completions, the first ones first.

        Where chance is seeded (see :class:`Sampling`), its stream begins with the first of these
        that is submitted while there are no others, nor any that last.

        Raises:
            ValueError: a prompt that leaves no room for a completion, or a key that is taken.
        """

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        """Keys and completions of a stream that have finished since the last call for it.

        Returns at once where there are any, else as soon as there are, and empty-handed after
        ``seconds`` or a :meth:`nudge`. Whatever was begun elsewhere is part of its sample.
        """

    def forget(self, keys: Sequence[int]) -> None:
        """Keep nothing of these trajectories, which have ended: no turn follows."""

    def nudge(self) -> None:
        """Let a :meth:`poll` that waits, or else the next one, return; from any thread."""

    def halt(self) -> list[tuple[int, Tokens]]:
        """Stop writing; what has not finished, in the order it was submitted.

        Completions that finished before the halt took effect are left to :meth:`poll`.
        """

    def update(self, policy: Policy) -> None:
        """Sample from these weights from now on.

        Trajectories on their way go on; their next tokens carry the new version.
        """

    def rest(self) -> None:
        """Hold no memory that can be done without until there is something to write again.

        Only while nothing is being written. Returns once the memory is free.
        """

    def close(self) -> None:
        """Release memory and processes; the engine is not usable afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold of it, for ``torch.save``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken; an engine of another kind begins anew."""


class WritesAtOnce(ABC):
    """Single trajectories by :meth:`generate`, where nothing is gained by keeping what was read."""

    _done: defaultdict[int, list[tuple[int, Sample]]] | None = None

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`."""

    def submit(self, trajectories: Sequence[Trajectory], sampling: Sampling) -> None:
        """See :class:`node.engines.engine.RolloutEngine`."""
        if self._done is None:
            self._done = defaultdict(list)
        written = self.generate([each.prompt for each in trajectories], 1, sampling)
        for each, (sample,) in zip(trajectories, written, strict=True):
            self._done[each.stream].append((each.key, sample))

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        """See :class:`node.engines.engine.RolloutEngine`; never waits."""
        return self._done.pop(stream, []) if self._done else []

    def forget(self, keys: Sequence[int]) -> None:  # noqa: B027 - there is nothing to do
        """Nothing is kept."""

    def nudge(self) -> None:  # noqa: B027 - there is nothing to do
        """Nobody waits."""

    def halt(self) -> list[tuple[int, Tokens]]:
        """Nothing is ever unfinished."""
        return []


@dataclass(slots=True)
class Pending:
    """A trajectory, how it is sampled, and what was added to it.

    Attributes:
        streamed: whether it is polled for.
        cap: most tokens of the whole completion.
        added: by the engine, in order.
    """

    trajectory: Trajectory
    sampling: Sampling
    streamed: bool
    cap: int
    added: list[Written] = field(default_factory=list)

    @classmethod
    def of(
        cls, trajectory: Trajectory, sampling: Sampling, policy: Policy, *, streamed: bool
    ) -> Pending:
        """Begin where the trajectory was begun.

        Raises:
            ValueError: its prompt leaves no room for a completion.
        """
        policy.check_prompt(trajectory.prompt)
        room = policy.context_length - len(trajectory.prompt)
        return cls(trajectory, sampling, streamed, min(sampling.max_new_tokens, room))

    @property
    def tokens(self) -> Tokens:
        """All that it has so far."""
        begun, added = self.trajectory.tokens, self.added
        return Tokens(
            (*begun.ids, *(token for each in added for token in each.ids)),
            (*begun.logprobs, *(value for each in added for value in each.logprobs)),
            (*begun.versions, *(each.version for each in added for _ in each.ids)),
        )

    def ended(self, policy: Policy) -> Finish | None:
        """How it has ended, where nothing is left to write."""
        ids = self.tokens.ids
        if ids and ids[-1] in policy.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(ids) >= self.cap else None

    def sample(self, policy: Policy, finish: Finish) -> Sample:
        """The completion it has become."""
        tokens = self.tokens
        return Sample(tokens, finish, policy.decode(tokens.ids))

    def job(self, number: int) -> Job:
        """The job that has it written under a number."""
        written = self.tokens.ids
        return Job(
            number,
            (*self.trajectory.prompt, *written),
            self.cap - len(written),
            self.sampling.temperature,
            self.sampling.greedy,
            self.trajectory.key if self.trajectory.lasts else None,
        )
