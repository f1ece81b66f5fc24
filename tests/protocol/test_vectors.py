"""This implementation passes the vectors that test other implementations."""

import json
import math
from collections.abc import Callable, Iterator
from hashlib import sha512
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

from node.tasks import answers
from protocol import errors, messages
from protocol.announcement import (
    check_record,
    depth_for,
    depth_of,
    dht_key_of,
    epoch_of,
    heldout_seed,
    open_announcement,
    record_key,
    shard_of,
    sign_announcement,
    task_seed,
)
from protocol.codec import CodecLimits, decode, encode
from protocol.errors import ProtocolError
from protocol.frame import open_frame, seal
from protocol.identity import Identity, author_of, verify
from protocol.manifest import open_manifest, sign_manifest, swarm_id, work
from protocol.profile import open_profile, sign_profile
from swarm.directory import Density
from swarm.transport.libp2p.calls import FIND, PING, STORE
from tests.protocol.cases_dht import answered, counted, request_of
from tests.protocol.samples import ALICE
from tests.protocol.views import tagged, view

FOLDER = Path(__file__).parent / "vectors"
unhex = bytes.fromhex


def read_codec(vector: dict, context: dict) -> object:
    value = decode(unhex(vector["input"]), CodecLimits(**context["limits"]))
    assert encode(value).hex() == vector["input"]
    return tagged(value)


def read_identity(vector: dict, context: dict) -> object:
    data = unhex(vector["input"])
    if "signature" in vector:
        author, signature = unhex(vector["author"]), unhex(vector["signature"])
        verify(author, vector["domain"].encode(), data, signature)
        return True
    identity = Identity.from_bytes(data)
    assert identity.export() == data
    assert author_of(identity.peer_id) == identity.author
    return {"author": identity.author.hex(), "peer_id": identity.peer_id}


def read_keys(vector: dict, context: dict) -> object:
    data = unhex(vector["input"])
    if "unix" in vector:
        return {"epoch": epoch_of(vector["unix"], vector["epoch_seconds"])}
    if "number" in vector:
        return {"heldout_seed": heldout_seed(data.decode(), vector["number"])}
    if "authors" in vector:
        return {"depth": depth_of(data, vector["epoch"], depth_for(vector["authors"]))}
    swarm, epoch, index = unhex(context["swarm_id"]), vector["epoch"], vector["index"]
    shard = shard_of(data, epoch, vector["depth"])
    key = record_key(swarm, epoch, vector["depth"], shard)
    return {
        "shard": shard,
        "record_key": key,
        "dht_key": dht_key_of(key).hex(),
        "task_seed": task_seed(data, epoch, index),
        "work_bits": work(swarm, data, index),
    }


def read_manifest(vector: dict, context: dict) -> object:
    data = unhex(vector["input"])
    manifest = open_manifest(data)
    assert sign_manifest(manifest, ALICE) == data
    return {"swarm_id": swarm_id(data).hex(), "manifest": view(manifest)}


def read_frame(vector: dict, context: dict) -> object:
    data, swarm = unhex(vector["input"]), unhex(context["swarm_id"])
    opened = open_frame(data, swarm, open_manifest(unhex(context["manifest"])))
    if not vector["name"].startswith("zstd"):
        assert seal(opened.batch, ALICE, swarm, compress=False) == data
    return view(opened)


def read_announcement(vector: dict, context: dict) -> object:
    data, swarm = unhex(vector["input"]), unhex(context["swarm_id"])
    manifest = open_manifest(unhex(context["manifest"]))
    if "place" in vector:
        key, subkey, expiry, now = vector["place"].values()
        author, opened = check_record(unhex(key), unhex(subkey), data, expiry, now, swarm, manifest)
    else:
        author, opened = open_announcement(data, swarm, manifest)
    assert sign_announcement(opened, ALICE, swarm) == data
    return {"author": author.hex(), "announcement": view(opened)}


def read_messages(vector: dict, context: dict) -> object:
    data = unhex(vector["input"])
    if vector["kind"] == "pull_response":
        status, frame = messages.decode_pull_response(data)
        return {"status": status.value, "frame": frame.hex()}
    if vector["kind"] == "gossip_request":
        return view(messages.decode_gossip_request(data))
    if vector["kind"] == "dial_back_request":
        return view(messages.decode_dial_back_request(data))
    if vector["kind"] == "dial_back_response":
        return view(messages.decode_dial_back_response(data, tuple(vector["asked"])))
    return view(messages.decode_gossip_response(data, vector.get("limit", messages.MAX_GOSSIP)))


def read_profile(vector: dict, context: dict) -> object:
    data, swarm = unhex(vector["input"]), unhex(context["swarm_id"])
    author, opened = open_profile(data, swarm)
    assert sign_profile(opened, ALICE, swarm) == data
    return {"author": author.hex(), "profile": view(opened)}


def read_answers(vector: dict, context: dict) -> object:
    completion = unhex(vector["input"]).decode()
    if vector.get("turn"):
        return answers.read_turn(completion, vector["extract"])
    return answers.read_answer(
        completion, vector["right"], vector["extract"], verbatim=vector.get("verbatim", False)
    )


def read_transcripts(vector: dict, context: dict) -> object:
    """Replay as docs/protocol.md specifies, without code of a node."""
    game = Game(vector["number"], vector["settings"])
    turns = vector["turns"]
    result = {"first": game.first}
    for place, action in enumerate(turns[::2]):
        if game.over:
            return {**result, "refused": "not_replayed"}
        follows = turns[2 * place + 1 : 2 * place + 2]
        if len(action) > 65536 and not follows:
            return {**result, "reward": 0.0}
        answered = game.step(action)
        if follows and not game.over and follows != [answered]:
            return {**result, "refused": "not_replayed"}
    if not game.over and not vector["cut"]:
        return {**result, "refused": "not_replayed"}
    return {**result, "reward": game.reward}


def read_dht(vector: dict, context: dict) -> object:
    request = vector["expected"]["request"]
    call = unhex(vector["input"])
    assert request_of(vector["call"], request) in call
    return {"request": request, **answered(vector["call"], call, vector)}


def read_counting(vector: dict, context: dict) -> object:
    density, ours, counts = Density(), 0.0, list[float]()
    results = []
    for slot in vector["slots"]:
        results.append(counted(density, slot))
        ours = moved(ours, counts, [found_along(path) for path in slot["found"]], slot["full"])
        assert ours == density.depth
    return results


def found_along(path: dict[str, list[int]]) -> float:
    """Return the count of a path as docs/protocol.md specifies."""
    least: dict[int, int] = {}
    for depth, numbers in path.items():
        for number in numbers:
            least[number] = min(least.get(number, 12), int(depth))
    return float(sum(2**depth for depth in least.values()))


def moved(depth: float, counts: list[float], paths: list[float], full: bool) -> float:
    """Return the depth after a count, as specified; ``counts`` are earlier counts."""
    lesser = min(paths)
    if full and (not counts or abs(suits(lesser) - depth) > 1):
        counts[:] = [lesser]
        return suits(lesser)
    counts[:] = [*counts, sum(paths) / 2][-3:]
    return depth + min(max(suits(median(counts)) - depth, -1.0), 1.0)


def suits(authors: float) -> float:
    return min(max(0.0, math.log2(max(authors, 1.0) / 16)), 12.0)


def twister(seed: str) -> Iterator[int]:
    """MT19937 with array seeding (Matsumoto, Nishimura), seeded as in CPython."""
    number = int.from_bytes(seed.encode() + sha512(seed.encode()).digest(), "big")
    words = []
    while number:
        words.append(number & 0xFFFFFFFF)
        number >>= 32
    state = [19650218]
    for n in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + n) & 0xFFFFFFFF)
    at, word = 1, 0
    rounds = chain([1664525] * max(624, len(words)), [1566083941] * 623)
    for factor in rounds:
        mixed = state[at] ^ (state[at - 1] ^ state[at - 1] >> 30) * factor
        added = words[word] + word if factor == 1664525 else -at
        state[at] = (mixed + added) & 0xFFFFFFFF
        at, word = at + 1, (word + 1) % len(words)
        if at == 624:
            state[0], at = state[623], 1
    state[0] = 1 << 31
    while True:
        for n in range(624):
            both = state[n] & 1 << 31 | state[(n + 1) % 624] & 0x7FFFFFFF
            state[n] = state[(n + 397) % 624] ^ both >> 1 ^ (both & 1) * 0x9908B0DF
        for y in state:
            y ^= y >> 11
            y ^= y << 7 & 0x9D2C5680
            y ^= y << 15 & 0xEFC60000
            yield y ^ y >> 18


def below(limit: int, outputs: Iterator[int]) -> int:
    """Draw a number below a limit as CPython does."""
    bits = limit.bit_length()
    return next(each for y in outputs if (each := y >> 32 - bits) < limit)


class Game:
    """``guess``, implemented from docs/protocol.md alone."""

    def __init__(self, number: int, settings: dict) -> None:
        bits = twister(f"guess/{number}")
        low = 1 + below(900, bits)
        self._hidden = low + below(settings["most"], bits)
        self.first = f"Guess from {low} to {low + settings['most'] - 1}"
        self._left, self.over, self.reward = settings["tries"], False, 0.0

    def step(self, action: str) -> str:
        self._left -= 1
        self.over = not self._left
        if not (1 <= len(action) <= 4 and all("0" <= each <= "9" for each in action)):
            return "no number"
        if int(action) == self._hidden:
            self.over, self.reward = True, 1.0
        return "higher" if int(action) < self._hidden else "lower"


READERS = {
    name.removeprefix("read_"): reader
    for name, reader in dict(globals()).items()
    if name.startswith("read_")
}
FILES = {kind: json.loads((FOLDER / f"{kind}.json").read_text()) for kind in READERS}
VECTORS = [
    pytest.param(kind, vector, {**file["context"], **vector}, id=f"{kind}: {vector['name']}")
    for kind, file in FILES.items()
    for vector in file["vectors"]
]


@pytest.mark.parametrize(("kind", "vector", "context"), VECTORS)
def test_vector_reads_as_expected_or_raises_its_error(kind, vector, context):
    if "expected" in vector:
        assert READERS[kind](vector, context) == vector["expected"]
        return
    with pytest.raises(ProtocolError) as caught:
        READERS[kind](vector, context)
    assert caught.value.code == vector["error"], caught.value


def test_every_file_has_a_reader() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(READERS)


def test_every_error_has_its_own_code_and_a_vector() -> None:
    classes = ProtocolError.__subclasses__()
    codes = {error.code for error in classes}
    assert len(codes) == len(classes)
    assert all(hasattr(errors, error.__name__) for error in classes)
    vectors = [vector for file in FILES.values() for vector in file["vectors"]]
    assert codes == {vector["error"] for vector in vectors if "error" in vector}


@pytest.mark.parametrize("vector", FILES["dht"]["vectors"], ids=lambda vector: vector["name"])
def test_hivemind_schema_decodes_calls_as_the_vectors_say(vector):
    from hivemind.proto import dht_pb2, p2pd_pb2

    data = unhex(vector["input"])
    call = p2pd_pb2.PersistentConnectionRequest.FromString(data[1 + (data[0] > 127) :])
    kinds: dict[str, Callable] = {
        PING: dht_pb2.PingRequest,
        FIND: dht_pb2.FindRequest,
        STORE: dht_pb2.StoreRequest,
    }
    assert call.callUnary.proto == vector["call"]
    read, fields = (
        kinds[vector["call"]].FromString(call.callUnary.data),
        vector["expected"]["request"],
    )
    assert read.peer.node_id.hex() == fields["node_id"]
    if vector["call"] == PING:
        assert read.validate == fields["validate"]
    elif vector["call"] == FIND:
        assert [key.hex() for key in read.keys] == fields["keys"]
    else:
        lists = read.keys, read.subkeys, read.values
        rows = zip(*([each.hex() for each in a_list] for a_list in lists), strict=True)
        ends = zip(rows, read.expiration_time, strict=True)
        assert [[*row, end] for row, end in ends] == fields["records"]
        assert list(read.in_cache) == [False] * len(fields["records"])
