"""A trainer with a scripted engine, alone in its swarm; its output is recorded."""

from __future__ import annotations

import threading

import pytest

from experiments.virtual_clock import VirtualClock
from node.config.config import Config
from node.run import update_groups
from node.run.training_loop import Trainer, open_experience
from node.run.update_groups import Outcome, Rules
from protocol.rollout import Group
from swarm.common.counters import Counters
from swarm.groups import Origin
from swarm.journal import MEMORY, Journal
from tests.node.rollout.overlap_parts import Teacher, VirtualEngine
from tests.support import random_policy
from tests.swarm.experience_parts import START
from tests.swarm.network_parts import manifest

LIMIT = 6
"""Groups that a member may share per time slot."""


def configured(*, streaming: bool = False, **changes: object) -> Config:
    """Return a small configuration; ``changes`` are named section__key."""
    small = {"engine__group_size": 2, "engine__max_new_tokens": 40, "schedule__eval_tasks": 2}
    small |= {"mixture__local": 4, "mixture__external": 0}
    small["schedule__mode"] = "async" if streaming else "sync"
    return Config.with_overrides(
        {name.replace("__", "."): value for name, value in {**small, **changes}.items()}
    )


class Closing(VirtualEngine):
    """Records its close call."""

    def close(self) -> None:
        self.before("close")


class Parts:
    """A trainer and everything around it.

    Attributes:
        calls: calls of the engine, in order.
        published: indexes and origin of the published groups, per round.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        streaming: bool = False,
        secret: bytes = b"",
        rules: Rules = Rules(costs=False),  # noqa: B008 - frozen; engines here take no time
        **changes: object,
    ) -> None:
        self.calls: list[str] = []
        self.config = configured(streaming=streaming, **changes)
        self.policy = random_policy(hidden=32, layers=1)
        self.engine = Closing(self.policy, self.calls.append)
        monkeypatch.setattr(update_groups, "open_streaming_engine", lambda *arguments: self.engine)
        clock = VirtualClock(START)
        self.counters = Counters()
        self.journal = Journal(MEMORY, clock)
        around = self.journal, clock, self.counters
        experience = open_experience(self.config.mixture, *around, b"salt")
        self.pool, self.accounts = experience.pool, experience.accounts
        self.published: list[tuple[list[int], Origin]] = []
        self.saved: list[int] = []
        self.outcomes: list[Outcome] = []
        self.trainer = Trainer(
            self.config,
            self.policy,
            author=bytes(32),
            manifest=manifest(max_groups_per_epoch=LIMIT),
            levels=[("sums", 0)],
            verifier=Teacher(),
            experience=experience,
            clock=clock,
            counters=self.counters,
            rules=rules,
            engine=None if streaming else self.engine,
            secret=secret,
        )

    def run(self, limit: int, *, done: int = 0) -> Parts:
        rounds = self.trainer.rounds(
            publish=self._publish,
            save=self.saved.append,
            rate=lambda number, reward: False,
            report=self.outcomes.append,
            done=done,
        )
        rounds.run(limit, threading.Event())
        return self

    def _publish(self, groups: list[Group], origin: Origin) -> None:
        self.published.append(([group.index for group in groups], origin))
