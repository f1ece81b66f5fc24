"""A node's rounds without the network, on groups that all have a signal."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bare import BareTrainer, bare_generate, seconds
from layouts import padded, rows_of
from policies import endless_policy

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.learner.batches import MicroBatch, TrainingGroup
from node.learner.steps import Newest
from node.lifecycle import Opened
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.async_generator import VERIFIER_THREADS, AsyncRolloutGenerator
from node.run.training_loop import Trainer, open_experience
from node.tasks.curriculum import served_levels
from node.tasks.task_set import load_task_set
from node.tasks.verifier.verifier import Verifier, VerifierPool
from protocol.identity import Identity
from protocol.manifest import Manifest
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.verification import Scored, VerifierError

NEVER = 1 << 40
PROMPTS = tuple(f"What is {n} + {n + 1}?\nAnswer:" for n in range(10, 90))
KEYS = {
    "mixture.external": 0,
    "schedule.checkpoint_every": NEVER,
    "schedule.eval_every": NEVER,  # evaluates before the first round only
    "schedule.eval_tasks": 1,
}


class SignalVerifier(Verifier):
    """Do all of a verifier's work, but return ``PROMPTS`` and call every other answer right."""

    def prompts(self, tasks: Sequence[Any]) -> list[str]:
        return list(PROMPTS[: len(super().prompts(tasks))])

    def verify_some(self, *args: Any, **kwargs: Any) -> Sequence[Scored]:
        return [_signal(found) for found in super().verify_some(*args, **kwargs)]


def _signal(found: Scored) -> Scored:
    if isinstance(found, VerifierError):
        return found
    return replace(found, rewards=tuple(float(i % 2) for i in range(len(found.rewards))))


class NodeStep(Opened):
    """Whole rounds of a node that is alone, and the parts of the last round by themselves.

    Args:
        policy: one that never stops by itself.
        folder: of the journal.
        prompts: groups per round, of ``completions`` with ``tokens`` each.
        keys: further keys of the node's configuration.
    """

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        prompts: int,
        completions: int,
        tokens: int,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        self._policy, self._folder, self._n, self._tokens = policy, folder, completions, tokens
        self._config = Config.with_overrides(
            {
                **KEYS,
                "policy.dtype": str(policy.model.dtype).removeprefix("torch."),
                "mixture.local": prompts,
                "engine.group_size": completions,
                "engine.max_new_tokens": tokens,
                **(keys or {}),
            }
        )
        self._groups: Sequence[TrainingGroup] = ()

    def whole(self) -> float:
        """Return the seconds of one round."""
        return seconds(self._rounds.step)

    def bare_sampling(self) -> float:
        """Return the seconds of the engine alone on the prompts of the last round."""
        sampling = Sampling(max_new_tokens=self._tokens)
        return seconds(lambda: self.engine.generate(self._prompts(), self._n, sampling))

    def bare_generate(self) -> float:
        """Return the seconds of ``transformers.generate`` on them."""
        arguments = (self._prompts(), self._n, self._tokens, self._policy.pad_id)
        return seconds(lambda: bare_generate(self._policy.model, *arguments))

    def bare_update(self) -> float:
        """Return the seconds of an update on the groups of the last round."""
        return seconds(lambda: self._update(self._groups))

    def bare_training(self) -> float:
        """Return the seconds of forward, backward and optimizer in the learner's layout."""
        return self._train(self._learner.batches(rows_of(self._groups)))

    def bare_padded_training(self) -> float:
        """Return the same with a padded row for every completion, prompt included."""
        return self._train(padded(rows_of(self._groups), self._policy))

    def generated(self) -> tuple[int, float]:
        """Return the tokens of the next round's groups, and the seconds until they are complete."""
        begin = time.perf_counter()
        groups = self._rounds.source.generate(self._config.mixture.local, Stopwatch())
        return sum(group.tokens for group in groups), time.perf_counter() - begin

    def drain(self) -> None:
        """Let an asynchronous engine finish all groups that have started."""
        source = self._rounds.source
        assert isinstance(source, AsyncRolloutGenerator)
        while source.window.running:
            source.beside(lambda: time.sleep(0.01))

    @cached_property
    def _bare(self) -> BareTrainer:
        return BareTrainer(self._policy.model)

    def _train(self, batches: Sequence[MicroBatch]) -> float:
        return seconds(lambda: self._bare.step(batches))

    def _prompts(self) -> list[list[int]]:
        return [list(group.prompt_ids) for group in self._groups]

    def _recorded(self, groups: Sequence[TrainingGroup], newest: Newest = tuple) -> Any:
        self._groups = groups
        return self._update(groups, newest)

    def _open(self, stack: ExitStack) -> None:
        config, clock, counters = self._config, SystemClock(), Counters()
        journal = Journal(self._folder / "journal.sqlite", clock)
        stack.callback(journal.close)
        task_set = load_task_set("tiny")
        verifiers = [SignalVerifier(task_set, outside=False) for _ in range(VERIFIER_THREADS)]
        verifier = stack.enter_context(VerifierPool(verifiers))
        author = Identity.generate().author
        manifest = Manifest(
            name="benchmark",
            founder=author,
            created=time.time(),
            catalogue=task_set,
            max_groups_per_epoch=1 << 16,
        )
        experience = open_experience(config.mixture, journal, clock, counters, b"")
        trainer = Trainer(
            config,
            self._policy,
            author=author,
            manifest=manifest,
            levels=served_levels(task_set, verifier.start()),
            verifier=verifier,
            experience=experience,
            clock=clock,
            counters=counters,
            engine=None if config.asynchronous else TransformersEngine(self._policy, seed=0),
        )
        stack.callback(trainer.close)
        self.engine, self._learner = trainer.engine, trainer.learner
        self._update = trainer.learner.update
        trainer.learner.update = self._recorded  # type: ignore[method-assign]
        self._rounds = trainer.rounds(
            publish=experience.outbox.put,
            save=lambda number: None,
            rate=lambda number, reward: False,
            report=lambda outcome: None,
        )


def async_step(options: argparse.Namespace, folder: Path, **schedule: float) -> NodeStep:
    """Return a node whose engine samples in its own process while the policy learns."""
    keys = {"engine.backend": options.engine, "engine.gpu_memory_utilization": 0.5}
    keys |= {"schedule.mode": "async", **{f"schedule.{k}": v for k, v in schedule.items()}}
    policy = endless_policy(options.model, tokens=2 * options.tokens)
    return NodeStep(policy, folder, options.prompts, options.completions, options.tokens, keys)
