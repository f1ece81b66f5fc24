"""Interface of a backend, which samples tokens inside an engine's process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.rollout import Finish


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
