"""The experience that peers share: groups of completions, each a list of segments.

A group is one task and the completions its author's policy wrote for it. Text is canonical;
token ids, log-probs and policy versions travel along as an option and are worth something only
to a reader whose encoding digest is the author's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Writer(IntEnum):
    """Who wrote a segment: the policy (trained on) or an environment (masked)."""

    POLICY = 0
    ENVIRONMENT = 1


class Finish(IntEnum):
    """Why a completion ended: the policy's end-of-sequence token, or the length cap."""

    STOP = 0
    LENGTH = 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """How the author's policy wrote one segment, token by token.

    The three tuples have the same length; empty ones stand for a completion that is yet to be
    written, and never travel. A final end-of-sequence token is included where the
    policy sampled it.

    Attributes:
        ids: token ids in the author's vocabulary, each below 2**32.
        logprobs: natural log of the probability of each id under the distribution it was sampled
            from (after temperature); float16 on the wire.
        versions: the author's policy step that each token was sampled under.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def first(self, count: int) -> Tokens:
        """The first ``count`` of them."""
        return Tokens(self.ids[:count], self.logprobs[:count], self.versions[:count])


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of text by one writer; ``tokens`` only on policy segments, and optional there."""

    writer: Writer
    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a task.

    Attributes:
        segments: in order; the ordinary case is one policy segment. In an environment the policy
            and the environment take turns, the policy first and last.
        reward: the author's claim. A reader replaces it with its own verdict.
        finish: why it ended.
    """

    segments: tuple[Segment, ...]
    reward: float
    finish: Finish

    @property
    def text(self) -> str:
        """The policy's own text, environment segments left out."""
        return "".join(s.text for s in self.segments if s.writer is Writer.POLICY)

    @property
    def alternates(self) -> bool:
        """Whether policy and environment take turns, the policy first and last."""
        writers = [segment.writer for segment in self.segments]
        turns = [Writer.ENVIRONMENT if n % 2 else Writer.POLICY for n in range(len(writers))]
        return len(writers) % 2 == 1 and writers == turns


@dataclass(frozen=True, slots=True)
class Group:
    """One task and its completions.

    The task's seed is not carried: every reader derives it from the author's key, ``epoch`` and
    ``index`` (:func:`protocol.keys.task_seed`), so an author picks the family and the level but
    never the instance.

    Attributes:
        env: name of a task family in the manifest's catalogue.
        level: index into that family's levels.
        epoch: epoch in which the author drew the task.
        index: number of the draw within the epoch, each used once.
        completions: at least two.
    """

    env: str
    level: int
    epoch: int
    index: int
    completions: tuple[Completion, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Claimed rewards, one a completion."""
        return tuple(c.reward for c in self.completions)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one frame carries: groups that one policy wrote.

    Attributes:
        sequence: strictly increasing over an author's life.
        policy_step: the author's policy version when the batch was sealed.
        created: unix time, seconds.
        model: free-form name of the author's model, for people to read.
        encoding: 32-byte digest of tokenizer, chat template and prompt format
            (equal digests mean equal token ids for equal text).
        temperature: of the sampling distribution.
        max_new_tokens: length cap in force.
        groups: at least one.
    """

    sequence: int
    policy_step: int
    created: float
    model: str
    encoding: bytes
    temperature: float
    max_new_tokens: int
    groups: tuple[Group, ...]
