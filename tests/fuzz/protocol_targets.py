"""All decoders of ``protocol``; signed bodies reach the code behind the signature."""

from collections.abc import Callable
from functools import partial

from protocol import envelope, messages
from protocol.announcement import check_record, dht_key_of, open_announcement, record_key
from protocol.codec import CodecLimits, decode, encode
from protocol.envelope import decompress_body
from protocol.errors import ProtocolError
from protocol.frame import open_frame, seal
from protocol.identity import Identity, author_of, decode_base58
from protocol.manifest import open_manifest
from protocol.profile import open_profile, sign_profile
from protocol.rollout import decode_batch, encode_batch, tokens_from_wire
from tests.fuzz.target import Target, target, vectors
from tests.protocol import samples
from tests.protocol.samples import MALLORY, MANIFEST, SWARM

_LIMITS = CodecLimits(1 << 16, depth=9, items=4096, str_len=1 << 12, bin_len=1 << 12)
_MOST = 1 << 16
_PLAIN = encode_batch(samples.batch())
_MESSAGES = (
    messages.decode_pull_request,
    messages.decode_pull_response,
    messages.decode_gossip_request,
    messages.decode_gossip_response,
    messages.decode_dial_back_request,
    partial(messages.decode_dial_back_response, asked=(443, 4001)),
)
_ANSWER = messages.DialledBack("2a00:77::2", (443,), relays=True)
_DIAL_BACK = (
    b"\x04" + messages.encode_dial_back_request((443, 4001)),
    b"\x05" + messages.encode_dial_back_response(_ANSWER),
)


def _codec(data: bytes) -> None:
    assert encode(decode(data, _LIMITS)) == data, "the codec accepts only the canonical encoding"


def _batch(data: bytes) -> None:
    assert encode_batch(decode_batch(data, _MOST)) == data, "a batch has only one valid encoding"


def _compression(data: bytes) -> None:
    assert len(decompress_body(data, _MOST)) <= _MOST


def _frame(data: bytes) -> None:
    opened = open_frame(samples.framed_body(data), SWARM, MANIFEST)
    seal(opened.batch, MALLORY, SWARM)


def _manifest(data: bytes) -> None:
    open_manifest(envelope.close(envelope.MANIFEST, envelope.NO_SWARM, MALLORY, data))


def _announcement(data: bytes) -> None:
    signed = envelope.close(envelope.ANNOUNCEMENT, SWARM, MALLORY, data)
    author, opened = open_announcement(signed, SWARM, MANIFEST)
    where = record_key(SWARM, opened.epoch, opened.depth, opened.shard)
    check_record(dht_key_of(where), author, signed, opened.expiry, samples.NOW, SWARM, MANIFEST)


def _profile(data: bytes) -> None:
    signed = envelope.close(envelope.PROFILE, SWARM, MALLORY, data)
    _, opened = open_profile(signed, SWARM)
    assert sign_profile(opened, MALLORY, SWARM) == signed, "a profile has only one valid encoding"
    assert (opened.name + opened.line).isprintable(), "the name and line are printable"


def _envelopes(data: bytes) -> None:
    kind, rest = data[:1], data[1:]
    if kind < b"\x55":
        open_frame(rest, SWARM, MANIFEST)
    elif kind < b"\xaa":
        open_manifest(rest)
    elif kind < b"\xd5":
        open_profile(rest, SWARM)
    else:
        open_announcement(rest, SWARM, MANIFEST)


def _messages(data: bytes) -> None:
    _MESSAGES[data[0] % len(_MESSAGES) if data else 0](data[1:])


def _tokens(data: bytes) -> None:
    tokens_from_wire(decode(data, _LIMITS))


def _identity(data: bytes) -> None:
    decode_base58(data.decode("latin-1"))
    author_of(data.decode("latin-1"))


def _key_file(data: bytes) -> None:
    Identity.from_bytes(data)


_HEADS = envelope.HEAD_BYTES
_KINDS = {"frame": b"\x00", "manifest": b"\x60", "profile": b"\xc0", "announcement": b"\xff"}
_ENVELOPES = tuple(kind + data for name, kind in _KINDS.items() for data in vectors(name))
_FRAMED = tuple(bytes([n]) + data for n in range(4) for data in vectors("messages"))
_BODIES = {name: vectors(name, without=_HEADS) for name in _KINDS}
_SEEDS: dict[Callable[[bytes], object], tuple[bytes, ...]] = {
    _codec: vectors("codec"),
    _batch: (_PLAIN,),
    _compression: _BODIES["frame"],
    _frame: _BODIES["frame"],
    _manifest: _BODIES["manifest"],
    _announcement: _BODIES["announcement"],
    _profile: _BODIES["profile"],
    _envelopes: _ENVELOPES,
    _messages: (*_FRAMED, *_DIAL_BACK),
    _tokens: (encode(samples.plain_wire()["groups"][0]),),
    _identity: (MALLORY.peer_id.encode(),),
    _key_file: (MALLORY.export(),),
}


def _define(run: Callable[[bytes], object], seeds: tuple[bytes, ...]) -> None:
    def make() -> Target:
        return Target(make.__name__, run, (ProtocolError,), seeds)

    make.__name__ = run.__name__.removeprefix("_")
    target(make)


for _run, _seeds in _SEEDS.items():
    _define(_run, _seeds)
