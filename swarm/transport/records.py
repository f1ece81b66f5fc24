"""DHT records: strict decoding, validation and notification of stored records.

:class:`StrictSerializer` and :class:`RecordGate` replace trusting parts of ``hivemind.dht``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from typing import Any

import msgpack

from protocol.announcement import (
    CLOCK_SKEW,
    Announcement,
    Opener,
    check_record,
    dht_key_of,
    epoch_of,
    open_announcement,
)
from protocol.errors import Expired, ProtocolError
from protocol.manifest import open_manifest, swarm_id
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot
from swarm.transport.transport import RECORD_LIMIT, RecordCheck, RecordView

logger = logging.getLogger(__name__)

MAX_REPORTS = 128  # a node stores about 20 per time slot in any swarm: 4 versions, 5 nodes each
DICTIONARY_CODE = 0x50  # hivemind's msgpack extension for the subkeys of one key
MAX_SUBKEYS = 1024
SUBKEY_LIMIT = 64
BIN_HEADER = 3
MESSAGE_LIMIT = 4 << 20
REMEMBERED_CHECKS = 8192
FRESH_SECONDS = 600.0  # a check displaces checks from earlier intervals of this length

Heard = Callable[[bytes], None]  # takes a record's value


class Watch:
    """A bounded number of notifications about records stored under some keys."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._keys: frozenset[bytes] = frozenset()
        self._heard: Heard | None = None
        self._left = 0

    def begin(self, keys: Collection[str], heard: Heard) -> None:
        """Call ``heard`` for records under ``keys`` from now on, and for no others."""
        self._keys = frozenset(map(dht_key_of, keys))
        self._heard = heard
        self._left = MAX_REPORTS

    def stored(self, key: bytes, value: bytes) -> None:
        """Report a checked and stored record; ``key`` is hashed, as in the DHT."""
        if self._heard is None or key not in self._keys:
            return
        if not self._left:
            self._counters.add("records_not_reported")
            return
        self._left -= 1
        self._heard(value)


class StrictSerializer:
    """A msgpack serializer that accepts only records and dictionaries of records."""

    def __init__(self, dictionary: type[Any]) -> None:
        self.dictionary = dictionary

    def dumps(self, value: object) -> bytes:
        """Encode a record, a subkey, or all records of a key."""
        return bytes(msgpack.packb(value, use_bin_type=True, default=self._pack, strict_types=True))

    def loads(self, data: bytes) -> object:
        """Decode the output of :meth:`dumps`; raise ``ValueError`` for other input."""
        return msgpack.unpackb(
            data,
            ext_hook=self._unpack,
            raw=False,
            max_array_len=0,
            max_map_len=0,
            max_str_len=RECORD_LIMIT,
            max_bin_len=RECORD_LIMIT + BIN_HEADER,
            max_ext_len=MESSAGE_LIMIT,
        )

    def _pack(self, value: object) -> msgpack.ExtType:
        if not isinstance(value, self.dictionary):
            raise TypeError(f"a record holds bytes, not {type(value).__name__}")
        return msgpack.ExtType(DICTIONARY_CODE, value.packb())

    def _unpack(self, code: int, data: bytes) -> object:
        # Layout: [size bound, latest expiry, [[subkey, value, expiry], ...]]. Containers are read
        # one by one, so that none can be nested where a scalar is expected.
        if code != DICTIONARY_CODE:
            raise ValueError(f"unexpected msgpack extension {code}")
        unpacker = msgpack.Unpacker(
            raw=False,
            max_buffer_size=MESSAGE_LIMIT,
            max_array_len=0,
            max_map_len=0,
            max_str_len=0,
            max_bin_len=RECORD_LIMIT + BIN_HEADER,
            max_ext_len=0,
        )
        unpacker.feed(data)
        result = self.dictionary(None)
        try:
            _enter(unpacker, 3, 3)
            unpacker.skip()
            unpacker.skip()
            with result.freeze():
                for _ in range(_enter(unpacker, 0, MAX_SUBKEYS)):
                    _enter(unpacker, 3, 3)
                    subkey, value, expiry = (unpacker.unpack() for _ in range(3))
                    if not isinstance(subkey, bytes) or not isinstance(value, bytes):
                        raise ValueError("a dictionary of records maps bytes to bytes")
                    if type(expiry) not in (int, float) or not math.isfinite(expiry):
                        raise ValueError("an expiration is not a finite number")
                    if subkey in result:  # the later one would hide a valid record
                        raise ValueError("a subkey is repeated")
                    result.store(subkey, value, float(expiry))
        except (msgpack.UnpackException, TypeError, RuntimeError) as error:
            raise ValueError(f"not a dictionary of records: {error!r}") from error
        return result


def _enter(unpacker: msgpack.Unpacker, minimum: int, maximum: int) -> int:
    length = int(unpacker.read_array_header())
    if not minimum <= length <= maximum:
        raise ValueError(f"array of {length} items where {minimum} to {maximum} are due")
    return length


@dataclass(frozen=True, slots=True)
class DictionaryRecord:
    """One record of a key, with the fields of hivemind's ``DHTRecord``.

    The subkey is empty if the value is a dictionary of all records of the key.
    """

    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


class RecordGate:
    """hivemind's record validator, with a cache of passed checks.

    It refuses all records until ``check`` is set. The cache avoids most signature checks, because
    each read returns a shard's records from every replica.
    """

    def __init__(
        self,
        serializer: StrictSerializer,
        counters: Counters,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check: RecordCheck | None = None
        self.watch: Watch | None = None
        self._serializer = serializer
        self._counters = counters
        secret = token_bytes(32)
        self._passed: Bounded[bytes, None] = Bounded(
            REMEMBERED_CHECKS, lambda digest: lot(secret, digest) - now() // FRESH_SECONDS
        )

    def validate(self, record: Any) -> bool:
        """Return whether a peer's record (a ``DHTRecord``) may be stored or read."""
        prefix = repr((record.key, record.subkey, record.expiration_time)).encode()
        digest = sha256(prefix + record.value).digest()
        if digest in self._passed:
            return True
        try:
            passed = self._examine(record)
        except Exception:
            logger.exception("checking a record failed")
            passed = False
        if not passed:
            self._counters.add("records_refused")
            return False
        self._passed.put(digest, None)
        return True

    def prune(self, key: bytes, dictionary: Any) -> bool:
        """Drop records that do not pass and keep the others; return whether any is left.

        hivemind's own check drops all of a replica's records if one is bad. Any author could then
        hide all other authors' records at replicas whose clocks are ahead.
        """
        with dictionary.freeze():
            for subkey, (value, expiry) in list(dictionary.items()):
                if not self.validate(
                    DictionaryRecord(key, self._serializer.dumps(subkey), value, expiry)
                ):
                    del dictionary[subkey]
            return len(dictionary) > 0

    def records(self, key: bytes, packed: bytes) -> Any:
        """Return a packed dictionary's valid records; raise ``ValueError`` if it is none."""
        result = self._serializer.loads(packed)
        if not isinstance(result, self._serializer.dictionary):
            raise ValueError("a value without subkeys")
        self.prune(key, result)
        return result

    def value(self, packed: bytes) -> bytes:
        """Return the value of a validated record."""
        value = self._serializer.loads(packed)
        assert isinstance(value, bytes), "no other passes"
        return value

    def stored(self, key: bytes, packed: bytes) -> None:
        """Report a validated, stored record to the watch."""
        if self.watch is not None:
            self.watch.stored(key, self.value(packed))

    def sign_value(self, record: Any) -> bytes:
        """Return the value unchanged: authors sign their records themselves."""
        return bytes(record.value)

    strip_value = sign_value

    def _examine(self, record: Any) -> bool:
        if self.check is None or len(record.subkey) > SUBKEY_LIMIT:
            return False
        try:
            subkey = self._serializer.loads(record.subkey)
            value = self._serializer.loads(record.value)
        except ValueError:
            return False
        if not isinstance(subkey, bytes) or not isinstance(value, bytes):
            return False
        return self.check(RecordView(record.key, subkey, value, record.expiration_time))


class RecordRule:
    """Record check for :meth:`swarm.transport.transport.Transport.use_validator`.

    ``signed`` is the manifest, signed by the swarm creator; anything else raises ``ProtocolError``.
    """

    def __init__(
        self, signed: bytes, clock: Clock, counters: Counters, opener: Opener = open_announcement
    ) -> None:
        self.signed = signed
        self.manifest = open_manifest(signed)
        self.swarm_id = swarm_id(signed)
        self._clock = clock
        self._counters = counters
        self._opener = opener

    def __call__(self, record: RecordView) -> bool:
        now = self._clock.time()
        fields = record.key, record.subkey, record.value, record.expiry
        try:
            _, announcement = check_record(*fields, now, self.swarm_id, self.manifest, self._opener)
        except Expired:
            # A replica whose clock is behind still stores the record, which is valid.
            return record.expiry > now - CLOCK_SKEW
        except ProtocolError as error:
            self.refused(error.code)
            return False
        return self.begun(announcement.epoch)

    def opened(self, record: bytes) -> tuple[bytes, Announcement]:
        """Return author and announcement; check neither the clock nor the place in the DHT."""
        return self._opener(record, self.swarm_id, self.manifest)

    def begun(self, epoch: int) -> bool:
        """Return whether a time slot has begun by this node's clock.

        An early record would precede all others. An author with a fast clock announces it again.
        """
        if epoch <= epoch_of(self._clock.time(), self.manifest.epoch_seconds):
            return True
        self.refused("not_begun")
        return False

    def refused(self, reason: str) -> None:
        """Count a refused announcement."""
        self._counters.add("announcements_refused", reason=reason)
