"""State of a simulated swarm between two rounds, from which an interrupted run resumes.

The figures of a resumed run are those of an uninterrupted one. The state is a pickle, which can run
code when it is loaded. Each user therefore signs with a key of their own, and loads no other.
"""

from __future__ import annotations

import hmac
import io
import logging
import pickle
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import cloudpickle
import torch
import transformers
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock
from platformdirs import user_data_path

from node.errors import NodeError
from node.storage.atomic_files import replacing, write_atomic
from node.threads import MemoryTrimmer
from swarm.journal import MEMORY

log = logging.getLogger(__name__)

SAVE_SECONDS = 60.0  # least time between two saves
SAVE_SHARE = 0.05  # of the time that may go into saving
KEY_BYTES = 32
UNSAVED = (NodeError, OSError, RuntimeError, TypeError, AttributeError, pickle.PickleError)
"""Errors of a full disk, or of an extension that cannot be pickled."""
UNREADABLE = (*UNSAVED, EOFError, LookupError, MemoryError, ValueError)
"""Errors of a damaged or wrong file."""


class RunState:
    """The state of one run, in a file that exists only while the run is unfinished.

    Args:
        conditions: settings and configuration of the run; a state under others is not loaded.
        shared: objects that the state refers to by name; they are not in the file.
    """

    def __init__(self, path: Path, conditions: str, shared: Mapping[str, object]) -> None:
        self._path = path
        self._conditions = conditions
        self._shared = shared
        self._due = time.monotonic() + SAVE_SECONDS

    def load(self) -> Any:
        """Return the saved object; None, with a warning, if it cannot be used."""
        if not self._path.exists():
            return None
        try:
            saved = torch.load(self._path, weights_only=True)
            pickled, storages = _bytes(saved["objects"]), saved["storages"]
            signature = self._signature(pickled, storages)
        except UNREADABLE as error:
            log.warning("%s cannot be read (%s): the run starts again", self._path, error)
            return None
        if not hmac.compare_digest(saved["signature"], signature):
            why = "is damaged, or of another program version, user or configuration"
            log.warning("%s %s: the run starts again", self._path, why)
            return None
        return _Reader(io.BytesIO(pickled), self._shared, storages).load()

    def offer(self, value: object) -> None:
        """Save ``value`` if that is due; a failure is logged, and the run continues."""
        began = time.monotonic()
        if began < self._due:
            return
        try:
            self.save(value)
        except UNSAVED as error:
            log.warning("the run was not saved: if interrupted, it starts again (%s)", error)
            self._due = float("inf")
            return
        took = time.monotonic() - began
        self._due = began + max(SAVE_SECONDS, took / SAVE_SHARE)

    def save(self, value: object) -> None:
        """Replace the file, or raise one of UNSAVED."""
        buffer = io.BytesIO()
        writer = _Writer(buffer, self._shared)
        writer.dump(value)
        pickled = buffer.getvalue()
        parts = {
            "objects": torch.frombuffer(bytearray(pickled), dtype=torch.uint8),
            "signature": self._signature(pickled, writer.storages),
            "storages": writer.storages,
        }
        with replacing(self._path, durable=False) as draft:
            torch.save(parts, draft)

    def _signature(self, pickled: bytes | memoryview, storages: Sequence[torch.Tensor]) -> str:
        """Sign all that a state consists of; raise TypeError if a storage is not its bytes."""
        signature = hmac.new(_key(), _program(), sha256)
        for part in chain((self._conditions.encode(), pickled), map(_bytes, storages)):
            signature.update(len(part).to_bytes(8, "big"))
            signature.update(part)
        return signature.hexdigest()


_MADE: dict[type, Callable[[], object]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    MemoryTrimmer: MemoryTrimmer,
}
"""Types that are made again instead of pickled."""


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that stores tensors aside and refers to shared objects by name.

    Attributes:
        storages: bytes of the tensors, as uint8 tensors.
    """

    def __init__(self, file: io.BytesIO, shared: Mapping[str, object]) -> None:
        super().__init__(file)
        self._names = {id(thing): name for name, thing in shared.items()}
        self._places: dict[int, int] = {}
        self.storages: list[torch.Tensor] = []

    def persistent_id(self, obj: object) -> Any:
        if isinstance(obj, torch.TypedStorage):
            storage = obj._untyped_storage
            place = self._places.setdefault(storage._cdata, len(self.storages))
            if place == len(self.storages):
                empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
                self.storages.append(empty.set_(storage))
            return place, obj.dtype
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, sqlite3.Connection):
            return _connection, (_content(obj),)
        if isinstance(obj, Ed25519PrivateKey):
            return _private_key, (obj.private_bytes_raw(),)
        if made := _MADE.get(type(obj)):
            return made, ()
        if isinstance(obj, MappingProxyType):
            return MappingProxyType, (dict(obj),)
        return super().reducer_override(obj)


class _Reader(pickle.Unpickler):
    """Unpickler of what :class:`_Writer` wrote."""

    def __init__(
        self, file: io.BytesIO, shared: Mapping[str, object], storages: list[torch.Tensor]
    ) -> None:
        super().__init__(file)
        self._shared = shared
        self._storages = storages

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, str):
            return self._shared[pid]
        place, dtype = pid
        storage, typed = self._storages[place].untyped_storage(), cast(Any, torch.TypedStorage)
        return typed(wrap_storage=storage, dtype=dtype, _internal=True)


def _bytes(stored: torch.Tensor) -> memoryview:
    if stored.dtype != torch.uint8 or not stored.is_contiguous():
        raise TypeError("not a row of bytes")
    return memoryview(cast(Any, stored.cpu().numpy()))


def _content(connection: sqlite3.Connection) -> bytes | None:
    try:
        return connection.serialize()
    except sqlite3.ProgrammingError:  # closed, as of a node that left
        return None


def _connection(content: bytes | None) -> sqlite3.Connection:
    connection = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
    if content is None:
        connection.close()
    else:
        connection.deserialize(content)
    return connection


def _private_key(raw: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(raw)


@cache
def _program() -> bytes:
    """Return a digest of everything whose classes and functions the pickle refers to."""
    root = Path(__file__).parent.parent
    versions = sys.version, torch.__version__, transformers.__version__
    digest = sha256(repr(versions).encode())
    for package in ("protocol", "swarm", "node", "experiments"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()


def _key() -> bytes:
    """Return this user's key, new if there is none; raise NodeError if it cannot be stored."""
    path = user_data_path("swarm-node", ensure_exists=True) / "experiments.key"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists() or path.stat().st_size != KEY_BYTES:
            write_atomic(path, secrets.token_bytes(KEY_BYTES))
    return path.read_bytes()
