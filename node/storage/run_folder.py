"""A node's run folder (key, journal, checkpoints, logs), its status, swarms and trust."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from node.errors import NodeError, RunFolderBusy
from node.storage.atomic_files import (
    PRIVATE_FOLDER,
    private_umask,
    sweep_drafts,
    tighten,
    try_lock,
    write_atomic,
    writing,
)
from protocol.identity import author_of
from swarm.common.fair_limits import author_or_none
from swarm.common.util import counted, fsync_path, make_private, plain_json

log = logging.getLogger(__name__)


class _Inside:
    """A path inside a run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.root / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one node's state, and the lock that keeps a second process out."""

    root: Path

    config = _Inside("node.toml")
    identity = _Inside("identity.key")
    journal = _Inside("journal.sqlite")
    checkpoints = _Inside("checkpoints")
    swarms = _Inside("swarms")
    metrics = _Inside("metrics.jsonl")
    groups = _Inside("groups.jsonl")
    log = _Inside("node.log")
    status = _Inside("status.json")
    peer_cache = _Inside("peers.json")
    census = _Inside("census.json")
    trusted = _Inside("trusted.txt")
    blocked = _Inside("blocked.txt")
    tensorboard = _Inside("tensorboard")
    lock_file = _Inside("lock")
    manifest = _Inside("manifest.swarm")  # signed, byte for byte as first received

    def create(self) -> RunFolder:
        """Create the folder if needed; raise NodeError if it is not writable."""
        try:
            self.root.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            problem = f"cannot make the run folder ({error.strerror})"
            remedy = "Choose a writable folder; in a node.toml [node] run_dir sets it."
            raise NodeError(problem, self.root, remedy) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            remedy = "Change its owner or choose another folder with [node] run_dir."
            raise NodeError("cannot write to the run folder", self.root, remedy)
        if tighten(self.root.resolve()):
            text = "the run folder %s was accessible to other users: now it is private"
            log.warning(text, self.root)
        return self

    def check(self) -> None:
        """Raise NodeError for what a node must not open in a folder from elsewhere.

        Reading a FIFO or device may never end. The node would write to the file behind a link.
        """
        identity = _kin(self.identity)
        linkable = {*identity, self.config, self.manifest, self.trusted, self.blocked}
        # Unlike rglob, walk passes over folders that a running node removes meanwhile.
        walks = chain.from_iterable(map(os.walk, self._trees()))
        inside = (Path(root, name) for root, folders, names in walks for name in (*folders, *names))
        for path in chain(identity, self._files(), self._trees(), inside):
            if path.is_symlink() and path not in linkable:
                remedy = "Put what it links to in its place, or use another run folder."
                raise NodeError("a link in the place of what the node writes", path, remedy)
            with suppress(OSError):
                mode = path.stat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    remedy = "Remove it, or use another run folder."
                    raise NodeError("neither a file nor a folder", path, remedy)

    def tighten(self) -> None:
        """Remove other users' access to the files, or raise NodeError if it cannot."""
        trees = [tree for tree in self._trees() if tree.exists()]
        with writing(self.root):
            paths = self._files() + [path for tree in trees for path in (tree, *tree.rglob("*"))]
            if count := sum(map(tighten, paths)):
                files = counted(count, "file")
                log.info("%s in %s: accessible to other users until now", files, self.root)

    def size(self) -> int:
        """Return the bytes of the node's own files; raise OSError if a part is unreadable."""

        def unless_gone(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        paths = [*_kin(self.identity), *self._files()]
        for tree in self._trees():
            walk = os.walk(tree, onerror=unless_gone)
            paths += [Path(folder, name) for folder, _, names in walk for name in names]
        return sum(map(_size, paths))

    def _files(self) -> list[Path]:
        own = {self.config, self.metrics, self.groups, self.status, self.manifest}
        own |= {self.peer_cache, self.journal, self.log, self.lock_file, self.census, self.trusted}
        own.add(self.blocked)
        return [path for name in own for path in _kin(name)]

    def _trees(self) -> tuple[Path, ...]:
        return self.checkpoints, self.tensorboard, self.swarms

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, or raise RunFolderBusy; clean up after a killed process.

        It removes drafts and completes a move between swarms. Raises NodeError if the plan of that
        move is damaged.
        """
        self.create()
        with writing(self.lock_file):  # unbuffered: closing must not repeat a failed write
            lock_file = make_private(self.lock_file).open("ab+", buffering=0)
        with private_umask(), lock_file as handle:
            for attempt in range(4):  # `holder` takes the lock for an instant
                if attempt:
                    time.sleep(0.05)
                if try_lock(handle.fileno()):
                    break
            else:
                raise self._busy(_pid(handle))
            with writing(self.lock_file):
                handle.truncate(0)
                handle.write(f"{os.getpid()}\n".encode())
            self.tighten()
            sweep_drafts(self.root)
            try:
                SwarmFiles(self).settle()
                yield
            finally:
                handle.truncate(0)

    def check_free(self) -> None:
        """Raise RunFolderBusy if a process holds the folder, before anything slow is loaded."""
        if (pid := self.holder()) is not None:
            raise self._busy("unknown" if pid < 0 else str(pid))

    def _busy(self, pid: str) -> RunFolderBusy:
        problem = f"the run folder is already used by process {pid}"
        remedy = "Stop that process, or use another folder for this node."
        return RunFolderBusy(problem, self.root, remedy)

    def holder(self) -> int | None:
        """Return the id of the process that works here, -1 if unknown, None if none does.

        It writes nothing, so read access is enough; without it, it raises NodeError.
        """
        try:
            with self.lock_file.open("rb", buffering=0) as handle:
                if try_lock(handle.fileno(), shared=True):
                    return None
                pid = _pid(handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            remedy = "Run the command as the user of the node, or as root."
            raise NodeError("cannot read", self.lock_file, remedy) from error
        return int(pid) if pid.isdigit() else -1

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace ``status.json``; readers never see a part of it."""
        write_atomic(self.status, plain_json(dict(status)).encode(), durable=False)

    def read_status(self) -> dict[str, Any]:
        """Return what the node last reported; raise NodeError if there is no valid report."""
        try:
            return _checked(json.loads(self.status.read_bytes()))
        except FileNotFoundError:
            remedy = "Wait if it just started, start it with swarm-node join, or name its --config."
            raise NodeError("no status of a node in", self.root, remedy) from None
        except (ValueError, RecursionError) as error:
            remedy = "Delete it; a running node writes a new one."
            raise NodeError("not a status file", self.status, remedy) from error


def _checked(status: Any) -> dict[str, Any]:
    """Return a status whose values other commands can use; raise ValueError for another type."""
    if not isinstance(status, dict) or not _are(dict, status.get("record")):
        raise ValueError("not an object")
    record, lists = status.get("record") or {}, [status.get("addresses"), status.get("peers")]
    numbers = [status.get("time"), record.get("round"), record.get("reward_local")]
    numbers.append(status.get("peers_more"))
    texts = [status.get(name) for name in ("peer_id", "swarm_id", "swarm_name")]
    if not (_are(list, *lists) and _are(int | float, *numbers) and _are(str, *texts)):
        raise ValueError("a value has another type")
    addresses, peers = (each or [] for each in lists)
    if not (_are(str, *addresses) and _are(dict, *peers)):
        raise ValueError("an item has another type")
    if not all(abs(number or 0) < 2**63 for number in numbers):  # NaN is not, either
        raise ValueError("a number is out of range")
    return status


def _are(kind: Any, *values: object) -> bool:
    return all(value is None or isinstance(value, kind) for value in values)


def _kin(path: Path) -> list[Path]:
    """Return the file and those named after it: database journals and earlier logs."""
    return list(path.parent.glob(f"{path.name}*"))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0  # a running node has replaced it


def _pid(handle: BinaryIO) -> str:
    handle.seek(0)
    return handle.read(32).decode(errors="replace").strip() or "unknown"


STARTING, RUNNING, STOPPING, STOPPED = "starting", "running", "stopping", "stopped"

CRASHED = "crashed"  # the process ended without reporting it

# Signed but unchecked claims of a peer; null if absent.
PROFILE_KEYS = ("name", "line", "model", "version")

OF_A_CONNECTION = ("link", "round_trip_s", "clock_ahead_s")  # null for a peer that is not connected


def present_status(folder: RunFolder) -> dict[str, Any]:
    """Return a node's status: the status file, corrected by who holds the folder.

    Adds ``running``, ``state`` and ``age_s`` (seconds). Raises NodeError if it is unreadable.
    """
    holder = folder.holder()
    try:
        report: Mapping[str, Any] = folder.read_status()
    except NodeError:
        if holder is None:
            raise
        report = {}
    state = report.get("state", STOPPED)
    if holder is None:
        state = STOPPED if state == STOPPED else CRASHED
    elif report.get("pid") != holder:
        state = STARTING
    is_running = state in (RUNNING, STOPPING)
    stamp = report.get("time")
    return {
        **dict.fromkeys(("peer_id", "swarm_id", "swarm_name", "record")),
        "addresses": [],
        "pid": holder,
        **report,
        "dashboard": report.get("dashboard") if is_running else None,
        "public": report.get("public") if is_running else None,
        "peers": [_now(peer, is_running) for peer in report.get("peers") or []],
        "running": holder is not None,
        "state": state,
        "age_s": None if stamp is None else max(0.0, time.time() - stamp),
    }


def _now(peer: Mapping[str, Any], is_running: bool) -> dict[str, Any]:
    current = {**peer, "connected": is_running and peer.get("connected", False)}
    null_keys = () if is_running else (key for key in OF_A_CONNECTION if key in peer)
    return {**current, **dict.fromkeys(null_keys)}


class SwarmFiles:
    """Manifest, journal and peer cache of a folder's current and earlier swarms.

    A journal holds pooled groups, task samples, sealed frames and reputations of one swarm. Files
    of other swarms are in ``swarms/ID``; the node's own stay. The caller holds the folder's lock.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._aside = folder.swarms
        self._plan = self._aside / "move.json"

    def set_aside(self) -> dict[str, bytes]:
        """Return the signed manifests of earlier swarms, by id in hex."""
        paths = sorted(self._aside.glob(f"*/{self._folder.manifest.name}"))
        return {path.parent.name: path.read_bytes() for path in paths}

    def move(self, left: str, entered: str, signed: bytes) -> None:
        """Set the files of swarm ``left`` aside and put those of ``entered`` in place.

        Ids are in hex. :meth:`settle` completes the move if the process is killed. Raises NodeError
        if the folder cannot be written to.
        """
        with writing(self._aside):
            for name in (left, entered):
                (self._aside / name).mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            write_atomic(self._aside / entered / self._folder.manifest.name, signed)
            self._write_plan(left, entered, out=False)
        self.settle()

    def settle(self) -> None:
        """Complete an interrupted move; raise NodeError if its plan is damaged."""
        if not self._plan.exists():
            return
        try:
            plan = json.loads(self._plan.read_bytes())
            old_swarm, new_swarm = (self._checked(plan[name]) for name in ("left", "entered"))
            moved_out = bool(plan["out"])
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Restore the run folder from a backup, or start a new run in another folder."
            raise NodeError("not a plan of a move between swarms", self._plan, remedy) from error
        with writing(self._aside):
            if not moved_out:
                # The folder still holds only files of the swarm that is left.
                _move_all(self._own(self._folder.root), self._aside / old_swarm)
                self._write_plan(old_swarm, new_swarm, out=True)
            _move_all(self._own(self._aside / new_swarm), self._folder.root)
            self._plan.unlink()
            fsync_path(self._aside)
        log.info("moved from swarm %s to swarm %s", old_swarm, new_swarm)

    def _checked(self, swarm: object) -> str:
        """Return a swarm's id in hex; raise ValueError for a path or link out of this folder."""
        if not isinstance(swarm, str) or not re.fullmatch("[0-9a-f]{64}", swarm):
            raise ValueError("not the id of a swarm")
        if self._aside.is_symlink() or (self._aside / swarm).is_symlink():
            raise ValueError("a symbolic link")
        return swarm

    def _write_plan(self, old_swarm: str, new_swarm: str, *, out: bool) -> None:
        plan = {"left": old_swarm, "entered": new_swarm, "out": out}
        write_atomic(self._plan, json.dumps(plan).encode())

    def _own(self, parent: Path) -> list[Path]:
        folder = self._folder
        names = (folder.journal.name + "*", folder.peer_cache.name, folder.manifest.name)
        return [path for name in names for path in sorted(parent.glob(name)) if path.is_file()]


def _move_all(files: list[Path], target: Path) -> None:
    for path in files:
        path.replace(target / path.name)
    fsync_path(target)


@dataclass(slots=True)
class ListedPeers:
    """Peer ids in a file of the run folder, one per line, and ``configured`` ones.

    The groups of ``trusted`` peers may fill an update: trust lifts the caps on an author's share
    (:mod:`swarm.mixture`) and nothing else. Groups of ``blocked`` peers are neither requested nor
    trained on. A running node reads the file again each round.
    """

    kind: Literal["trusted", "blocked"]
    folder: RunFolder
    configured: Sequence[str] = ()
    _last: tuple[str, ...] | None = field(default=None, init=False)

    @property
    def command(self) -> str:
        """The command that changes the file."""
        return "swarm-node trust" if self.kind == "trusted" else "swarm-node block"

    @property
    def path(self) -> Path:
        return self.folder.trusted if self.kind == "trusted" else self.folder.blocked

    def all(self) -> tuple[str, ...]:
        """Return the configured peer ids and those in the file, or raise NodeError."""
        return (*self.configured, *self.added())

    def added(self) -> tuple[str, ...]:
        """Return the peer ids in the file, or raise NodeError."""
        path = self.path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            remedy = "Check its owner and permissions, or remove it and name the peers again."
            raise NodeError(f"cannot read the {self.kind} peers", path, remedy) from error
        peers = dict.fromkeys(filter(None, (line.partition("#")[0].strip() for line in lines)))
        for peer in peers:
            if author_or_none(peer) is None:
                remedy = f"Correct or remove that line of {path}."
                raise NodeError(f"a {self.kind} peer is not a peer id", peer, remedy)
        return tuple(peers)

    def authors(self) -> frozenset[bytes]:
        """Return the public keys; raise NodeError if the file was never usable."""
        try:
            self._last = self.added()
        except NodeError as error:
            if self._last is None:
                raise
            log.warning("the list of %s peers stays as it was: %s", self.kind, error)
        return frozenset(map(author_of, (*self.configured, *self._last)))

    def write(self, peers: Sequence[str]) -> None:
        """Replace the peers in the file."""
        head = f"# Peers that are {self.kind} here, one id a line; {self.command} writes it.\n"
        text = head + "".join(f"{peer}\n" for peer in dict.fromkeys(peers))
        write_atomic(self.path, text.encode())
