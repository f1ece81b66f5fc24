"""Contents of a checkpoint, how a node resumes from one, and rolling back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from node.config.config import Config
from node.config.learning import PolicySection
from node.config.sections import ScheduleSection
from node.errors import CheckpointError, ConfigError, NodeError
from node.monitor.history import read_history
from node.policy.checkpoint_policy import saved_policy
from node.policy.model_files import PolicyError
from node.policy.policy import Policy
from node.run.training_loop import Trainer
from node.storage.checkpoints import (
    CheckpointEntry,
    Checkpoints,
    Loaded,
    best_of,
    list_checkpoints,
    named,
)
from node.storage.run_folder import RunFolder
from swarm.common.clock import SystemClock
from swarm.common.util import Say, counted
from swarm.journal import Journal, backup_path, open_or_restore
from swarm.pool import Pool, updates_of

log = logging.getLogger(__name__)

LEARNER = "learner.pt"
ENGINE = "engine.pt"
ENTRIES = ("round", "swarm", "policy_step", "model", "dtype", "sampler", "lead", "forgetting")


class RunState:
    """The state between two rounds, which it saves and restores.

    A checkpoint is a model or adapter for transformers and vLLM, with optimizer and random states.
    Notes of another ``swarm``'s tasks are dropped. Raises CheckpointError if all are lost.
    """

    def __init__(
        self, folder: RunFolder, journal: Journal, schedule: ScheduleSection, swarm: str
    ) -> None:
        keep, best = schedule.keep_checkpoints, schedule.keep_best
        self._checkpoints = Checkpoints(folder.checkpoints, keep, best)
        self._journal = journal
        self._swarm = swarm
        self._saved = -1
        self.round = 0  # rounds done
        self.notes: tuple[str, ...] = ()  # where it resumes, and what had to be skipped
        self.loaded: Loaded | None = self._checkpoints.load_latest()
        if not (loaded := self.loaded):
            _check_none_lost(folder)
            return
        with _complete(loaded):
            entries = {name: loaded.state[name] for name in ENTRIES}
            self.round = self._saved = int(entries["round"])
            position = f"round {self.round}, policy step {entries['policy_step']}"
            self.notes = *loaded.notes, f"resuming from {position}, checkpoint {loaded.path.name}"

    def policy(self, config: PolicySection, tell: Say = log.info) -> Policy:
        """Load the saved policy or the base model, or raise PolicyError or ConfigError."""
        if self.loaded:
            return saved_policy(config, self.loaded, tell)
        return Policy.load(config, tell=tell)

    def reference(self, config: Config, tell: Say = log.info) -> PreTrainedModel | None:
        """Load the model that the run began with, if peers' answers are bounded by it.

        None if it is the policy itself: of a new run, or below an adapter. Raises ConfigError if
        that model cannot be loaded any more.
        """
        bounded = config.mixture.peer_ratio and config.mixture.external
        if not (self.loaded and bounded) or config.policy.lora_rank:
            return None
        try:
            return Policy.load(config.policy, tell=tell).model
        except PolicyError as error:
            raise ConfigError(
                "mixture.peer_ratio",
                config.mixture.peer_ratio,
                f"It needs the initial model of this run ({error}). Restore that model, or set "
                "mixture.peer_ratio = 0.",
            ) from error

    def restore(self, trainer: Trainer, pool: Pool) -> None:
        """Restore all other parts to the same moment, and drop later updates."""
        if not self.loaded:
            pool.rewind(0)
            return
        path, state = self.loaded.path, self.loaded.state
        with _complete(self.loaded):
            trainer.learner.load_state_dict(_read(path / LEARNER))
            trainer.engine.load_state_dict(_read(path / ENGINE))
            if state["swarm"] == self._swarm:
                trainer.sampler.load_state_dict(state["sampler"])
                trainer.peer_advantage.load_state_dict(state["lead"])
                trainer.alarm.load_state_dict(state["forgetting"])
            pool.rewind(int(state["policy_step"]))

    def save(self, number: int, trainer: Trainer) -> None:
        """Write a round's checkpoint and back up the journal, or raise DiskFullError.

        The round that the run resumed from is not written again: a process that is killed between
        the two renames would leave neither.
        """
        if number == self._saved:
            return

        def write(folder: Path) -> None:
            policy = trainer.policy
            (policy.save_adapter if policy.adapter else policy.save)(folder)
            torch.save(trainer.learner.state_dict(), folder / LEARNER)
            torch.save(trainer.engine.state_dict(), folder / ENGINE)

        state: dict[str, Any] = {
            "round": number,
            "swarm": self._swarm,
            "policy_step": trainer.policy.version,
            "model": trainer.policy.name,
            "dtype": str(trainer.policy.model.dtype).removeprefix("torch."),
            "sampler": trainer.sampler.state_dict(),
            "lead": trainer.peer_advantage.state_dict(),
            "forgetting": trainer.alarm.state_dict(),
            **(trainer.policy.adapter.settings if trainer.policy.adapter else {}),
        }
        self._checkpoints.save(number, write, state)
        self._journal.backup()
        self.round = self._saved = number

    def rate(self, number: int, reward: float) -> bool:
        """Store a held-out reward; return whether it is the best and lacks a checkpoint."""
        checkpoints, rewards = self._checkpoints, self._checkpoints.rewards
        steps = checkpoints.steps()
        is_best = reward >= rewards.highest(self._swarm, steps)
        rewards.note(number, self._swarm, reward, kept=steps)
        return bool(checkpoints.best) and is_best and number not in (0, *steps)


@contextmanager
def _complete(loaded: Loaded) -> Iterator[None]:
    """Raise CheckpointError if the block finds that an entry of a checkpoint is missing."""
    try:
        yield
    except KeyError as error:
        problem = f"another version of swarm-node wrote the checkpoint, without {error}"
        remedy = "Use that version, or export the model and start a new run from it."
        raise CheckpointError(problem, loaded.path, remedy) from error


def _read(path: Path) -> dict[str, Any]:
    # Mapped: the optimizer copies the numbers, which would otherwise be in memory twice.
    return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))


def _check_none_lost(folder: RunFolder) -> None:
    """Raise CheckpointError if a folder without checkpoints had any.

    A backup of the journal, or the saving time in a later record, proves it; rounds alone do not.
    """
    try:
        history = read_history(folder.root)
    except NodeError:
        history = []
    backup = backup_path(folder.journal)
    backups = [backup] if backup.exists() else [*folder.swarms.glob(f"*/{backup.name}")]
    if not backups and not any("checkpoint" in record.seconds for record in history):
        return
    problem = "the checkpoints are missing"
    if history:
        rounds = history[-1].round
        problem += f" and {counted(rounds, 'round')} {'was' if rounds == 1 else 'were'} done here"
    remedy = "Put them back, or start a new run in another folder."
    raise CheckpointError(problem, folder.checkpoints, remedy)


def roll_back_before(
    folder: RunFolder, schedule: ScheduleSection, authors: Iterable[bytes]
) -> tuple[list[int], CheckpointEntry | None, list[int]]:
    """Make the newest checkpoint from before the authors' first group in an update the newest one.

    Returns the policy steps that followed from their groups, as far as the journal remembers, and
    what :func:`roll_back` returns; no checkpoint if there are none. Raises CheckpointError if no
    checkpoint is old enough, and what :func:`roll_back` raises.
    """
    with folder.locked(), ExitStack() as stack:
        journal, notes = open_or_restore(folder.journal, SystemClock())
        stack.enter_context(closing(journal))
        for note in notes:
            log.warning(note)
        steps = sorted({step for author in authors for step in updates_of(journal, author)})
        if not steps:
            return [], None, []
        entries = list_checkpoints(Checkpoints(folder.checkpoints))
    rounds = [e.round for e in entries if e.policy_step is not None and e.policy_step < steps[0]]
    if not rounds:
        raise CheckpointError(
            f"no checkpoint is older than policy step {steps[0]}, the first with their groups",
            folder.checkpoints,
            "Begin in another folder, or return to a later one with: swarm-node rollback --to "
            "ROUND. schedule.keep_checkpoints keeps more.",
        )
    return steps, *roll_back(folder, schedule, str(max(rounds)))


def roll_back(
    folder: RunFolder, schedule: ScheduleSection, to: str
) -> tuple[CheckpointEntry, list[int]]:
    """Make the checkpoint that ``to`` names, or the ``"best"``, the newest.

    ``status`` shows that round as the last one. When the node starts, it strikes later updates from
    the journal. Groups that they were made of stay used, and task samples and sequence numbers
    continue. Returns the checkpoint, and the rounds of those set aside. Raises RunFolderBusy if the
    node runs, UsageError if there is no such checkpoint, and CheckpointError if it is damaged.
    """
    checkpoints = Checkpoints(folder.checkpoints, schedule.keep_checkpoints, schedule.keep_best)
    with folder.locked():
        entries = list_checkpoints(checkpoints)
        entry = best_of(entries, folder) if to == "best" else named(entries, to, "--to")
        later = checkpoints.roll_back(entry.round)
        if folder.status.exists():
            _show(folder, entry.round)
        return entry, later


def _show(folder: RunFolder, number: int) -> None:
    """Let ``status`` show round ``number`` as the last one, or log why it cannot."""
    try:
        records = [r.to_dict() for r in read_history(folder.root) if r.round <= number]
        folder.write_status({**folder.read_status(), "record": records[-1] if records else None})
    except (NodeError, OSError) as error:
        log.warning("until the node runs, its status shows an earlier state: %s", error)
