"""Checkpoint folders that appear whole or not at all, their rewards and their list."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Any, BinaryIO

from node.errors import CheckpointError, DiskFullError, NodeError, UsageError
from node.storage.atomic_files import (
    DAMAGES,
    PRIVATE_FOLDER,
    is_disk_full,
    lock,
    try_lock,
    write_atomic,
    writing,
)
from node.storage.run_folder import RunFolder
from protocol.manifest import swarm_id
from swarm.common.util import fsync_path

log = logging.getLogger(__name__)


class HeldoutRewards:
    """Mean held-out rewards by round, each with the swarm that it was measured in.

    A damaged file is logged and replaced. Methods raise NodeError if they cannot read or write now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[int, tuple[str, float]]:
        """Return by round the swarm (id in hex) and the reward."""
        try:
            rows = json.loads(self._path.read_bytes())
            return {int(n): (str(swarm), float(reward)) for n, (swarm, reward) in rows.items()}
        except FileNotFoundError:
            return {}
        except (OSError, *DAMAGES) as error:
            _must_be_damage(error, self._path)
            log.warning("the held-out rewards in %s cannot be read: %s", self._path, error)
            return {}

    def note(
        self, number: int, swarm: str, reward: float, kept: Collection[int] | None = None
    ) -> None:
        """Add a reward; drop those of rounds that are not among ``kept``, if given."""
        rows = {n: row for n, row in self.read().items() if kept is None or n in kept}
        self._write(rows | {number: (swarm, reward)})

    def move(self, rounds: Iterable[int], other: HeldoutRewards) -> None:
        rows = self.read()
        if entries := {number: rows[number] for number in rounds if number in rows}:
            other._write(other.read() | entries)
            self._write({n: row for n, row in rows.items() if n not in entries})

    def highest(self, swarm: str, rounds: Iterable[int]) -> float:
        """Return the highest reward of some rounds in a swarm; minus infinity without one."""
        rows = self.read()
        rewards = (rows[n][1] for n in rounds if n in rows and rows[n][0] == swarm)
        return max(rewards, default=float("-inf"))

    def best(self, rounds: Iterable[int], count: int) -> set[int]:
        """Return the ``count`` best of some rounds in each swarm; of equals the latest."""
        rows, result = self.read(), set[int]()
        rated = [n for n in rounds if n in rows]
        for swarm in {rows[n][0] for n in rated}:
            pairs = ((rows[n][1], n) for n in rated if rows[n][0] == swarm)
            result.update(n for _, n in nlargest(count, pairs))
        return result

    def _write(self, rows: dict[int, tuple[str, float]]) -> None:
        self._path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps(rows).encode())


STATE = "state.json"
DIGESTS = "digests.json"
REWARDS = "rewards.json"
READERS = "readers.lock"
ROLLED_BACK = "rolled-back"
_NAME = re.compile(r"step-(\d{8,18})")
_LEFT = re.compile(r"\.(draft|old)(-\d+)+")  # of a killed process
_GIVEN = re.compile(r"(?:step-)?(\d{1,18})")


class _DamagedError(Exception):
    """A checkpoint whose files are not the ones that were written."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint; ``notes`` say which damaged ones had to be skipped."""

    path: Path
    state: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return int(self.path.name.rpartition("-")[2])


class Checkpoints:
    """The newest ``keep`` checkpoints of a run and the ``best`` of each swarm.

    Each is written to a temporary folder, flushed and renamed, so that a crash leaves earlier ones
    intact. Loading checks the sha256 of every file, which is in ``digests.json``.
    """

    def __init__(self, folder: Path, keep: int = 2, best: int = 1) -> None:
        self.folder = folder
        self.keep = keep
        self.best = best
        self.rewards = HeldoutRewards(folder / REWARDS)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the current checkpoints, even if a node saves others meanwhile.

        A process without write access can do so once a node has saved a checkpoint.
        """
        path = self.folder / READERS
        with ExitStack() as stack:
            try:
                lock_file = path.open("rb") if path.exists() else self._readers()
            except FileNotFoundError:
                pass  # there is no checkpoint either
            except OSError as error:
                log.warning("%s: %s; a node that runs here may delete what is read", path, error)
            else:
                lock(stack.enter_context(lock_file).fileno(), shared=True)
            yield

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, damaged ones included, oldest first."""
        if not self.folder.is_dir():
            return []
        names = {path.name for path in self.folder.iterdir() if path.is_dir()}
        steps = {int(match[1]) for match in map(_NAME.fullmatch, names) if match}
        return sorted(step for step in steps if self.path(step).name in names)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def save(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any]) -> Path:
        """Write the checkpoint of ``step`` and delete those that are no longer kept.

        ``write`` fills an empty folder; ``state`` holds JSON-ready facts. The same step is
        replaced, and later ones, which were damaged, are deleted. Deletion waits while another
        process is :meth:`reading`. Raises DiskFullError; earlier checkpoints stay, and no partial
        one.
        """
        self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._sweep()
        draft = self.folder / f".draft-{os.getpid()}"
        try:
            (self.folder / READERS).touch()
            draft.mkdir(mode=PRIVATE_FOLDER)
            write(draft)
            _write_json(draft / STATE, dict(state))
            digests = {name: _sha256(path) for name, path in _files(draft).items()}
            _write_json(draft / DIGESTS, digests)
            for path in (*draft.rglob("*"), draft):
                fsync_path(path)
        except BaseException as error:
            is_full = is_disk_full(error, self.folder)
            shutil.rmtree(draft, ignore_errors=True)
            if is_full:
                problem = "no space left to write a checkpoint in"
                remedy = "Free some space there; earlier checkpoints are kept and the run resumes."
                raise DiskFullError(problem, self.folder, remedy) from error
            raise
        final = self.path(step)
        if final.exists():
            final.rename(self.folder / f".old-{os.getpid()}")
        draft.rename(final)
        fsync_path(self.folder)
        self._prune(step)
        return final

    def load_latest(self) -> Loaded | None:
        """Load the newest intact checkpoint; raise CheckpointError if all are damaged."""
        notes: list[str] = []
        for step in reversed(self.steps()):
            path = self.path(step)
            try:
                state = _verify(path)
            except _DamagedError as damage:
                notes.append(f"checkpoint {path.name} is damaged ({damage}) and was skipped")
                log.info("%s", notes[-1])
                continue
            if notes:
                notes.append(f"using the earlier checkpoint {path.name}")
                log.info("%s", notes[-1])
            return Loaded(path, state, tuple(notes))
        if notes:
            problem = "no checkpoint can be read in"
            remedy = "Restore that folder from a backup, or start a new run in another folder."
            raise CheckpointError(problem, f"{self.folder} ({'; '.join(notes)})", remedy)
        return None

    def load(self, step: int) -> Loaded:
        """Load a checkpoint; raise CheckpointError if it is missing or damaged."""
        path = self.path(step)
        try:
            return Loaded(path, _verify(path))
        except _DamagedError as damage:
            remedy = "Choose a checkpoint that swarm-node checkpoints lists."
            raise CheckpointError(f"checkpoint damaged ({damage})", path, remedy) from damage

    def roll_back(self, step: int) -> list[int]:
        """Make the checkpoint of ``step`` the newest; return later ones, now set aside.

        Raises CheckpointError if missing or damaged, NodeError while read or if not writable.
        """
        archive = self.rolled_back()
        source = self if step in self.steps() else archive
        source.load(step)
        with writing(self.folder):
            lock_file = self._readers()
        with lock_file:
            if not try_lock(lock_file.fileno()):
                remedy = "Wait until swarm-node eval or export ends, and try again."
                raise NodeError("another process uses the checkpoints in", self.folder, remedy)
            rounds = [number for number in self.steps() if number > step]
            with writing(self.folder):
                archive.folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                for number in rounds:
                    if archive.path(number).exists():
                        archive._delete(number)
                    self.path(number).rename(archive.path(number))
                self.rewards.move(rounds, archive.rewards)
                if source is archive:
                    archive.path(step).rename(self.path(step))
                    archive.rewards.move([step], self.rewards)
                fsync_path(self.folder)
            archive._prune(max(archive.steps(), default=0))
            return rounds

    def rolled_back(self) -> Checkpoints:
        """Return the checkpoints that rollbacks set aside."""
        return Checkpoints(self.folder / ROLLED_BACK, self.keep, self.best)

    def _sweep(self) -> None:
        for leftover in self.folder.iterdir():
            if _LEFT.fullmatch(leftover.name):
                shutil.rmtree(leftover, ignore_errors=True)

    def _prune(self, newest: int) -> None:
        valid = [step for step in self.steps() if step <= newest]
        to_keep = {*valid[-self.keep :], *self.rewards.best(valid, self.best)}
        with self._readers() as lock_file:
            if not try_lock(lock_file.fileno()):
                log.info("%s: in use, so old checkpoints are deleted later", self.folder)
                return
            for step in set(self.steps()) - to_keep:
                try:
                    self._delete(step)
                except PermissionError:
                    if sys.platform != "win32":  # which deletes no open or mapped file
                        raise
                    log.info("%s: in use, so it is deleted later", self.path(step))
            self._sweep()

    def _delete(self, step: int) -> None:
        """Delete a checkpoint under another name, so that a crash leaves no part of it."""
        old_path = self.folder / f".old-{step}-{os.getpid()}"
        self.path(step).rename(old_path)
        shutil.rmtree(old_path)

    def _readers(self) -> BinaryIO:
        """Open the lock file that readers share and a deleting process holds alone."""
        return (self.folder / READERS).open("ab")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _files(folder: Path) -> dict[str, Path]:
    return {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


DAMAGE = (errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENOTDIR)


def _must_be_damage(error: Exception, path: Path) -> None:
    """Raise NodeError if reading failed for a reason that may pass, such as missing rights."""
    if isinstance(error, OSError) and error.errno not in DAMAGE:
        problem = f"cannot read the checkpoints ({error.strerror})"
        raise NodeError(problem, error.filename or path, "Correct that, and repeat.") from error


def _verify(folder: Path) -> dict[str, Any]:
    """Return the state of an intact checkpoint; raise NodeError if it cannot be read now."""
    try:
        digests = json.loads((folder / DIGESTS).read_bytes())
        files = _files(folder)
        files.pop(DIGESTS)
        if set(files) != set(digests) or STATE not in digests:
            differing = sorted(set(files) ^ set(digests)) or [STATE]
            raise _DamagedError(f"{differing[0]} is missing or was added")
        for name, path in files.items():
            if _sha256(path) != digests[name]:
                raise _DamagedError(f"{name} is not what was written")
        return dict(json.loads(files[STATE].read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _must_be_damage(error, folder)
        raise _DamagedError(f"{DIGESTS} cannot be read") from error


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A listed checkpoint, whose files are not verified."""

    round: int  # rounds done when it was written, which names it
    policy_step: int | None  # optimizer steps by then; None if its state cannot be read
    reward: float | None  # mean held-out reward; None if it was not evaluated
    swarm: str  # id in hex of the swarm that the reward was measured in; empty without one
    bytes: int  # total size of its files
    age_s: float
    path: str
    rolled_back: bool  # whether the run was rolled back to an earlier one
    best: bool = False  # has its swarm's highest reward; of equals the latest not rolled back

    def load(self) -> Loaded:
        """Load and verify the checkpoint; raise CheckpointError if it is damaged."""
        return Checkpoints(Path(self.path).parent).load(self.round)


def list_checkpoints(checkpoints: Checkpoints) -> list[CheckpointEntry]:
    """List every checkpoint, the oldest first; those rolled back come last."""
    entries: list[CheckpointEntry] = []
    with checkpoints.reading():
        for source in (checkpoints, checkpoints.rolled_back()):
            rewards, rolled_back = source.rewards.read(), source is not checkpoints
            for step in source.steps():
                path, (swarm, reward) = source.path(step), rewards.get(step, ("", None))
                entry = CheckpointEntry(
                    round=step,
                    policy_step=_policy_step(path),
                    reward=reward,
                    swarm=swarm,
                    bytes=sum(each.stat().st_size for each in path.rglob("*") if each.is_file()),
                    age_s=max(0.0, time.time() - path.stat().st_mtime),
                    path=str(path),
                    rolled_back=rolled_back,
                )
                entries.append(entry)
    best: dict[str, CheckpointEntry] = {}
    # Of equal rewards the later entry counts, so those rolled back come first.
    for entry in sorted(entries, key=lambda each: not each.rolled_back):
        if entry.reward is not None and entry.reward >= (best.get(entry.swarm, entry).reward or 0):
            best[entry.swarm] = entry
    return [replace(entry, best=entry in best.values()) for entry in entries]


def named_round(given: str, option: str) -> int:
    """Return the number in a round, or in the name or path of a checkpoint's folder.

    Raises UsageError, which names ``option``, if it is none of these.
    """
    if match := _GIVEN.fullmatch(Path(given).name):
        return int(match[1])
    best = "best, " if option == "--to" else ""
    remedy = f"Give a round, {best}or the name of a folder in checkpoints/, such as step-00000012."
    raise UsageError(option, given, remedy)


def named(entries: Sequence[CheckpointEntry], given: str, option: str) -> CheckpointEntry:
    """Return the checkpoint of a round, or of a folder's name or path, or raise UsageError.

    A number that is not the round of any checkpoint may be the policy step of one.
    """
    number, path = named_round(given, option), Path(given)
    matches = [entry for entry in entries if entry.round == number]
    if path.name != given:
        matches = [entry for entry in matches if Path(entry.path).resolve() == path.resolve()]
    if not matches and given.isdecimal():
        matches = [entry for entry in entries if entry.policy_step == number]
    if matches:
        return matches[0]
    choices = ", ".join(map(_shown, entries)) or "none yet"
    raise UsageError(option, given, f"There is no checkpoint of that round; there are: {choices}.")


def _shown(entry: CheckpointEntry) -> str:
    step = "" if entry.policy_step is None else f" (policy step {entry.policy_step})"
    return f"{entry.round}{step}"


def best_of(entries: Sequence[CheckpointEntry], folder: RunFolder) -> CheckpointEntry:
    """Return the checkpoint of the best reward in this swarm, or raise UsageError."""
    swarm = swarm_id(folder.manifest.read_bytes()).hex() if folder.manifest.exists() else ""
    for entry in entries:
        if entry.best and entry.swarm == swarm:
            return entry
    remedy = "No checkpoint was evaluated in this swarm yet: see schedule.eval_every."
    raise UsageError("the best checkpoint of", folder.root, remedy)


def no_checkpoint(folder: Path) -> NodeError:
    remedy = "A node writes one every schedule.checkpoint_every rounds and when it stops; "
    remedy += "eval --model needs none."
    return NodeError("no checkpoint yet in", folder, remedy)


def _policy_step(path: Path) -> int | None:
    try:
        return int(json.loads((path / STATE).read_bytes())["policy_step"])
    except (OSError, *DAMAGES):
        return None
