"""Checkpoints: folders that appear whole or not at all, and say when they are damaged."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from node.errors import CheckpointError, DiskFullError, NodeError
from node.storage.atomic_files import (
    PRIVATE_FOLDER,
    is_disk_full,
    lock,
    try_lock,
    write_atomic,
    write_error,
)
from swarm.common.util import fsync_path

log = logging.getLogger(__name__)


class HeldoutRewards:
    """Mean held-out rewards by round, each in the swarm whose tasks they were measured on.

    A file that cannot be read is begun anew, with a word in the log: checkpoints do not need it.

    Args:
        path: the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[int, tuple[str, float]]:
        """Round, and its swarm (id in hex) and reward."""
        try:
            rows = json.loads(self._path.read_bytes())
            return {int(n): (str(swarm), float(reward)) for n, (swarm, reward) in rows.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            log.warning("the held-out rewards in %s cannot be read: %s", self._path, error)
            return {}

    def note(self, number: int, swarm: str, reward: float) -> None:
        """Remember what the policy after round ``number`` is worth.

        Raises:
            NodeError: the file cannot be written.
        """
        self._write(self.read() | {number: (swarm, reward)})

    def move(self, rounds: Iterable[int], other: HeldoutRewards) -> None:
        """Hand what is known of some rounds over to ``other``.

        Raises:
            NodeError: a file cannot be written.
        """
        rows = self.read()
        moved = {number: rows[number] for number in rounds if number in rows}
        if moved:
            other._write(other.read() | moved)
            self._write({n: row for n, row in rows.items() if n not in moved})

    def keep(self, rounds: Iterable[int]) -> None:
        """Forget every round but these.

        Raises:
            NodeError: the file cannot be written.
        """
        kept, rows = set(rounds), self.read()
        if rows.keys() - kept:
            self._write({number: row for number, row in rows.items() if number in kept})

    def highest(self, swarm: str, rounds: Iterable[int]) -> float:
        """The highest reward of some rounds in that swarm; minus infinity where none is known."""
        rows = self.read()
        rewards = (rows[n][1] for n in rounds if n in rows and rows[n][0] == swarm)
        return max(rewards, default=float("-inf"))

    def best(self, rounds: Iterable[int], count: int) -> set[int]:
        """The ``count`` best of some rounds in each swarm; of equals the latest."""
        rows, found = self.read(), set[int]()
        rated = [n for n in rounds if n in rows]
        for swarm in {rows[n][0] for n in rated}:
            ours = sorted((rows[n][1], n) for n in rated if rows[n][0] == swarm)
            found.update(n for _, n in ours[len(ours) - min(count, len(ours)) :])
        return found

    def _write(self, rows: dict[int, tuple[str, float]]) -> None:
        self._path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps(rows).encode())


STATE = "state.json"
DIGESTS = "digests.json"
REWARDS = "rewards.json"
READERS = "readers.lock"
ROLLED_BACK = "rolled-back"
_NAME = re.compile(r"step-(\d{8,})")


class _DamagedError(Exception):
    """A checkpoint whose files are not the ones that were written."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint.

    Attributes:
        path: its folder, holding whatever ``write`` put there.
        state: the mapping that was saved beside it.
        notes: what had to be left aside to get here, one sentence each.
    """

    path: Path
    state: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The number that it was saved under."""
        return int(self.path.name.rpartition("-")[2])


class Checkpoints:
    """The newest ``keep`` checkpoints of a run and the ``best`` of each swarm, under ``folder``.

    What a checkpoint is worth is known once it was evaluated, see :attr:`rewards`.

    Each is written to a temporary folder on the same disk, flushed file by file and renamed, so a
    crash at any moment leaves the earlier ones as they were. ``digests.json`` holds the sha256 of
    every file and is checked when loading.
    """

    def __init__(self, folder: Path, keep: int = 2, best: int = 1) -> None:
        self.folder = folder
        self.keep = keep
        self.best = best
        self.rewards = HeldoutRewards(folder / REWARDS)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep every checkpoint that is here now, whatever a running node writes meanwhile.

        A process that may not write here can do so as soon as a node has saved one.
        """
        with ExitStack() as stack:
            if readers := self._reader():
                lock(stack.enter_context(readers), shared=True)
            yield

    def _reader(self) -> BinaryIO | None:
        path = self.folder / READERS
        try:
            return path.open("rb") if path.exists() else self._readers()
        except FileNotFoundError:
            return None  # there is no checkpoint either
        except OSError as error:
            log.warning("%s: %s; a node that runs here may delete what is read", path, error)
            return None

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first; damaged ones included."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(p.name) for p in self.folder.iterdir() if p.is_dir())
        return sorted(int(m[1]) for m in found if m)

    def path(self, step: int) -> Path:
        """Folder of the checkpoint of ``step``."""
        return self.folder / f"step-{step:08d}"

    def save(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any]) -> Path:
        """Write the checkpoint of ``step`` and drop those that are not to be kept any more.

        While another process is :meth:`reading`, none is dropped before the next one is saved.
        A checkpoint of a later step belongs to a history that was given up (it was damaged, and
        the run went on from an earlier one) and is dropped too.

        Args:
            step: names the checkpoint; an existing one of the same step is replaced.
            write: fills an empty folder with files (weights, optimizer, random states).
            state: small JSON-ready facts that belong to the same moment.

        Raises:
            DiskFullError: no space; earlier checkpoints are untouched, nothing half is left.
        """
        self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._sweep()
        draft = self.folder / f".draft-{os.getpid()}"
        try:
            (self.folder / READERS).touch()
            draft.mkdir(mode=PRIVATE_FOLDER)
            write(draft)
            (draft / STATE).write_text(json.dumps(dict(state), indent=1) + "\n")
            _seal(draft)
        except BaseException as error:
            full = is_disk_full(error, self.folder)
            shutil.rmtree(draft, ignore_errors=True)
            if full:
                raise DiskFullError(
                    "no space left to write a checkpoint in",
                    self.folder,
                    "Free some space there; earlier checkpoints are kept and the run resumes.",
                ) from error
            raise
        final = self.path(step)
        if final.exists():
            final.rename(self.folder / f".old-{os.getpid()}")
        draft.rename(final)
        fsync_path(self.folder)
        self._prune(step)
        return final

    def load_latest(self) -> Loaded | None:
        """The newest checkpoint whose files are intact; ``None`` when there never was one.

        Raises:
            CheckpointError: there are checkpoints and every one is damaged.
        """
        notes: list[str] = []
        for step in reversed(self.steps()):
            path = self.path(step)
            try:
                state = _verify(path)
            except _DamagedError as damage:
                notes.append(f"checkpoint {path.name} is damaged ({damage}) and was left aside")
                log.info("%s", notes[-1])
                continue
            if notes:
                notes.append(f"using the earlier checkpoint {path.name}")
                log.info("%s", notes[-1])
            return Loaded(path, state, tuple(notes))
        if notes:
            raise CheckpointError(
                "no checkpoint can be read in",
                f"{self.folder} ({'; '.join(notes)})",
                "Restore that folder from a backup, or begin anew in another run folder.",
            )
        return None

    def load(self, step: int) -> Loaded:
        """The checkpoint of ``step``.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        path = self.path(step)
        try:
            return Loaded(path, _verify(path))
        except _DamagedError as damage:
            remedy = "Choose another of those that swarm-node checkpoints lists."
            raise CheckpointError(f"checkpoint damaged ({damage})", path, remedy) from damage

    def roll_back(self, step: int) -> list[int]:
        """Make the checkpoint of ``step`` the newest; later ones are set aside, not deleted.

        One that was set aside before comes back. As many are kept there as here.

        Returns:
            The steps set aside.

        Raises:
            CheckpointError: there is none of that step, or it is damaged.
            NodeError: another process is :meth:`reading`, or the folder cannot be written to.
        """
        aside = self.rolled_back()
        source = self if step in self.steps() else aside
        source.load(step)
        try:
            readers = self._readers()
        except OSError as error:
            raise write_error(self.folder, error) from error
        with readers:
            if not try_lock(readers):
                raise NodeError(
                    "another process reads the checkpoints in",
                    self.folder,
                    "Let swarm-node eval or export come to its end, and try again.",
                )
            return self._set_aside(step, source, aside)

    def _set_aside(self, step: int, source: Checkpoints, aside: Checkpoints) -> list[int]:
        later = [each for each in self.steps() if each > step]
        try:
            aside.folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            for each in later:
                if aside.path(each).exists():
                    shutil.rmtree(aside.path(each))
                self.path(each).rename(aside.path(each))
            self.rewards.move(later, aside.rewards)
            if source is aside:
                aside.path(step).rename(self.path(step))
                aside.rewards.move([step], self.rewards)
            fsync_path(self.folder)
        except OSError as error:
            raise write_error(self.folder, error) from error
        aside._prune(max(aside.steps(), default=0))
        return later

    def rolled_back(self) -> Checkpoints:
        """Those that the run went back behind."""
        return Checkpoints(self.folder / ROLLED_BACK, self.keep, self.best)

    def _sweep(self) -> None:
        for left in self.folder.glob(".*-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _prune(self, newest: int) -> None:
        valid = [step for step in self.steps() if step <= newest]
        kept = {*valid[-self.keep :], *self.rewards.best(valid, self.best)}
        with self._readers() as readers:
            if not try_lock(readers):
                log.info("%s: being read, so none is deleted before the next one", self.folder)
                return
            for step in set(self.steps()) - kept:
                shutil.rmtree(self.path(step))
            self._sweep()

    def _readers(self) -> BinaryIO:
        """The file that whoever reads has a share in, and whoever deletes has to itself."""
        return (self.folder / READERS).open("ab")


def _files(folder: Path) -> dict[str, Path]:
    return {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _seal(folder: Path) -> None:
    """Record the digest of every file, then flush files and folders."""
    digests = {name: _sha256(path) for name, path in _files(folder).items()}
    (folder / DIGESTS).write_text(json.dumps(digests, indent=1) + "\n")
    for path in folder.rglob("*"):
        fsync_path(path)
    fsync_path(folder)


def _verify(folder: Path) -> dict[str, Any]:
    """The saved state, once every file has the digest it was written with."""
    try:
        digests = json.loads((folder / DIGESTS).read_bytes())
        found = _files(folder)
        found.pop(DIGESTS)
        if set(found) != set(digests) or STATE not in digests:
            odd = sorted(set(found) ^ set(digests)) or [STATE]
            raise _DamagedError(f"{odd[0]} is missing or was added")
        for name, path in found.items():
            if _sha256(path) != digests[name]:
                raise _DamagedError(f"{name} is not what was written")
        return dict(json.loads(found[STATE].read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _DamagedError(f"{DIGESTS} cannot be read") from error
