"""What one node holds of the hash table: records that were checked, within bounds."""

from __future__ import annotations

from protocol.keys import dht_key_of
from swarm.common.counters import Counters
from swarm.transport.guests import Guests
from swarm.transport.libp2p.calls import Stored
from swarm.transport.libp2p.dictionary import Dictionary, Shelf
from swarm.transport.records import DictionaryRecord, RecordGate, StrictSerializer
from swarm.transport.storage import BoundedStorage


class Share:
    """Keeps records, and reads those that others keep.

    Attributes:
        gate: where the check of records is set.
    """

    def __init__(self, counters: Counters, guests: Guests) -> None:
        self._serializer = StrictSerializer(Dictionary)
        self.gate = RecordGate(self._serializer, counters)
        self._storage = BoundedStorage(Shelf(guests.clock), counters, guests, self.gate.stored)

    def record(self, key: str, subkey: bytes, value: bytes, expiry: float) -> Stored:
        """A record as it goes over the wire."""
        pack = self._serializer.dumps
        return Stored(dht_key_of(key), pack(subkey), pack(value), expiry)

    def keep(self, record: Stored) -> bool:
        """Whether a record that holds was stored, or every one of a whole dictionary that does.

        Raises:
            ValueError: it is neither.
        """
        if record.subkey:
            checked = DictionaryRecord(record.key, record.subkey, record.value, record.expiration)
            if not self.gate.validate(checked):
                return False
            subkey = self._serializer.loads(record.subkey)
            return self._storage.store(record.key, record.value, record.expiration, subkey)
        found = self.read(record.key, record.value)
        kept = [
            self._storage.store(record.key, entry.value, entry.expiration_time, subkey)
            for subkey, entry in found.items()
        ]
        return bool(kept) and all(kept)

    def held(self, key: bytes) -> Stored | None:
        """The dictionary under a key, packed; None where nothing is held."""
        entry = self._storage.get(key)
        if entry is None:
            return None
        return Stored(key, b"", self._serializer.dumps(entry.value), entry.expiration_time)

    def held_keys(self) -> list[bytes]:
        """All keys under which something is held."""
        return [key for key, _ in self._storage.items()]

    def read(self, key: bytes, packed: bytes) -> Dictionary:
        """Of a packed dictionary the records that hold.

        Raises:
            ValueError: it is none.
        """
        found = self._serializer.loads(packed)
        if not isinstance(found, Dictionary):
            raise ValueError("a value without subkeys")
        self.gate.prune(key, found)
        return found

    def plain(self, packed: bytes) -> bytes:
        """The value of a record that holds."""
        value = self._serializer.loads(packed)
        assert isinstance(value, bytes), "the gate lets no other in"
        return value
