"""Interfaces of a rollout engine, and of the backend that samples in its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from protocol.rollout import Finish, Tokens

if TYPE_CHECKING:
    from node.policy.policy import Policy

Prompts = Sequence[Sequence[int]]  # token ids of each
OWN = -1  # the stream of completions that :meth:`RolloutEngine.generate` waits for


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for drawing completions from the whole vocabulary, or ``ValueError``.

    Top-k and top-p would cut the support that importance weights need. A ``seed`` starts a separate
    random stream for one call of :meth:`RolloutEngine.generate`: equal weights then yield equal
    samples, and later draws are unaffected. Engines in separate processes ignore it.
    """

    temperature: float = 1.0  # divides the logits; above 0
    max_new_tokens: int = 64  # including end-of-sequence
    greedy: bool = False  # most probable token; log-probs may be those at temperature 1
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
    """One sampled completion."""

    tokens: Tokens  # as sampled; versions never decrease
    finish: Finish
    text: str  # the decoded tokens, without special ones


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A completion to sample or continue.

    If it ``lasts``, another turn may follow, under the same key and with a prompt that begins with
    this one and its completion. The engine then keeps the cache until :meth:`RolloutEngine.abort`.
    """

    key: int  # unique among the engine's current trajectories
    prompt: tuple[int, ...]  # token ids
    tokens: Tokens = field(default_factory=Tokens)  # completion so far
    stream: int = 0  # the consumer; each calls :meth:`RolloutEngine.poll` for its own
    lasts: bool = False


class RolloutEngine(Protocol):
    """Samples completions from a policy.

    Trajectories are decoded during :meth:`poll`, or in parallel by an engine with its own process.
    Then only :meth:`generate` and :meth:`sleep` wait for completions, and :meth:`poll` for up to
    its timeout. :meth:`nudge` and :meth:`update` may be called from any thread, all others from
    one.
    """

    def generate(self, prompts: Prompts, n: int, sampling: Sampling) -> list[list[Sample]]:
        """Return ``n`` completions of each prompt (token ids), in order.

        A completion ends early if prompt and completion fill the policy's context. Raises
        ValueError: an empty prompt, or one that leaves no room for a completion.
        """

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        """Start or continue these completions, in order.

        With a seed (see :class:`Sampling`), a stream starts with the first trajectory submitted
        while no other is active or lasting. Raises ValueError: a prompt leaves no room for a
        completion, or a key is taken.
        """

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        """Return keys and completions that a stream has finished since its last call.

        Returns as soon as there are any, or empty after ``seconds`` or a :meth:`nudge`. Samples
        include the tokens that their trajectory started with.
        """

    def abort(self, keys: Sequence[int]) -> None:
        """Drop the caches of these trajectories, which have no further turn."""

    def nudge(self) -> None:
        """Make the current or next :meth:`poll` return; from any thread."""

    def pause(self) -> list[tuple[int, Tokens]]:
        """Abort; return unfinished trajectories in order, leave others to :meth:`poll`."""

    def update(self, policy: Policy) -> None:
        """Sample from these weights from now on, for active trajectories also."""

    def sleep(self) -> None:
        """Free memory and wait until it is free; call this only while nothing is sampled."""
        return

    def close(self) -> None:
        """Release memory and processes; the engine is not usable afterwards."""
        return

    def state_dict(self) -> dict[str, Any]:
        """Return the state to checkpoint, for ``torch.save``; by default none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; an engine of another kind starts fresh."""
        return


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The settings that open a backend."""

    backend: str  # a name of :data:`node.config.registry.ENGINES`
    folder: str  # of the snapshot, see :mod:`node.engines.weight_snapshot`
    dtype: str  # of weights and cache
    device: str
    stop_ids: tuple[int, ...]
    context_length: int  # maximum prompt plus completion tokens
    seed: int
    max_rows: int  # maximum completions decoded together
    options: dict[str, Any]  # specific to this backend


@dataclass(frozen=True, slots=True)
class Request:
    """A text to continue; its number identifies it."""

    number: int
    ids: tuple[int, ...]  # prompt and completion so far
    room: int  # maximum tokens to add, 1 or more
    temperature: float
    greedy: bool
    lasting: int | None = None  # key of a trajectory that may continue after this request


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Tokens added to a request since the last report."""

    number: int
    ids: list[int]  # including the one that ended the request
    logprobs: list[float]  # one per token, under the distribution it was drawn from
    version: int  # of the policy, the same for all tokens
    finish: Finish | None = None  # None while the request is unfinished


class Backend(Protocol):
    """A sampler of requests, step by step; calls return each token once."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, in order."""

    def step(self) -> list[RequestOutput]:
        """Sample one token per request; return ended requests, and others at intervals."""

    def update(self) -> list[RequestOutput]:
        """Switch to the snapshot's weights, now or some steps later.

        Returns tokens of the earlier weights; later ones depend on the new weights alone. Raises
        SnapshotError: the snapshot cannot be used.
        """

    def pause(self) -> list[RequestOutput]:
        """Abort all requests; return their unreported tokens."""

    def abort(self, lasting: Sequence[int]) -> None:
        """Drop the caches of these trajectories, which have no further requests."""

    def sleep(self) -> None:
        """Release memory until the next request; only called without requests."""


@dataclass(slots=True)
class Pending:
    """A trajectory, its sampling settings, and the tokens added so far."""

    trajectory: SamplingRequest
    sampling: Sampling
    cap: int  # maximum tokens of the whole completion
    added: list[RequestOutput] = field(default_factory=list)

    @classmethod
    def of(cls, trajectory: SamplingRequest, sampling: Sampling, policy: Policy) -> Pending:
        """Create it without added tokens; raise ValueError for a prompt that is too long."""
        policy.check_prompt(trajectory.prompt)
        limit = policy.context_length - len(trajectory.prompt)
        return cls(trajectory, sampling, min(sampling.max_new_tokens, limit))

    @property
    def tokens(self) -> Tokens:
        initial, outputs = self.trajectory.tokens, self.added
        return Tokens(
            (*initial.ids, *(token for output in outputs for token in output.ids)),
            (*initial.logprobs, *(value for output in outputs for value in output.logprobs)),
            (*initial.versions, *(output.version for output in outputs for _ in output.ids)),
        )

    def ended(self, policy: Policy) -> Finish | None:
        """Return how it ended, or None if tokens are left to sample."""
        ids = self.tokens.ids
        if ids and ids[-1] in policy.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(ids) >= self.cap else None

    def sample(self, policy: Policy, finish: Finish) -> Sample:
        tokens = self.tokens
        return Sample(tokens, finish, policy.decode(tokens.ids))

    def request(self, number: int) -> Request:
        ids = self.tokens.ids
        return Request(
            number,
            (*self.trajectory.prompt, *ids),
            self.cap - len(ids),
            self.sampling.temperature,
            self.sampling.greedy,
            self.trajectory.key if self.trajectory.lasts else None,
        )
