"""Vectors of key files, public names, signatures, and values derived from keys."""

from protocol.announcement import (
    depth_for,
    depth_of,
    dht_key_of,
    epoch_of,
    heldout_seed,
    record_key,
    shard_of,
    task_seed,
)
from protocol.identity import Identity
from protocol.manifest import work
from tests.protocol.samples import ALICE, BOB, EPOCH, SWARM
from tests.protocol.views import invalid, valid

DOMAIN = b"swarm-node/1/test"
# libp2p's own test vector: https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md.
LIBP2P_KEY = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]


def identity() -> dict:
    vectors = []
    for number, data in enumerate((LIBP2P_KEY, ALICE.export(), BOB.export())):
        read = Identity.from_bytes(data)
        names = {"author": read.author.hex(), "peer_id": read.peer_id}
        vectors.append(valid(f"key file {number}", data, names))
    signature = ALICE.sign(DOMAIN, b"message").hex()
    fields = {"author": ALICE.author.hex(), "domain": DOMAIN.decode(), "signature": signature}
    vectors.append(valid("signature", b"message", True, **fields))
    wrong = [
        ("another message", {"input": b"massage".hex()}, "bad_signature"),
        ("another domain", {"domain": "swarm-node/1/frame"}, "bad_signature"),
        ("another author", {"author": BOB.author.hex()}, "bad_signature"),
        ("signature cut short", {"signature": signature[:-2]}, "bad_signature"),
        ("R of small order", {"signature": "01" + "00" * 31 + signature[64:]}, "bad_signature"),
        ("author cut short", {"author": ALICE.author.hex()[:-2]}, "bad_key"),
        ("author off the curve", {"author": "02" + "00" * 31}, "bad_key"),
        ("author not canonical", {"author": "ed" + "ff" * 30 + "7f"}, "bad_key"),
        ("author not canonical, signed", {"author": "ee" + "ff" * 31}, "bad_key"),
        *(
            (f"author of small order {n}", {"author": k}, "bad_key")
            for n, k in enumerate(SMALL_ORDER)
        ),
    ]
    base = {"input": b"message".hex(), **fields}
    vectors += [{"name": name, **base, **change, "error": e} for name, change, e in wrong]
    exported = ALICE.export()
    files = {
        "key file of another author": exported[:36] + BOB.author,
        "key file cut short": exported[:-1],
        "key file with a byte more": exported + b"\0",
        "key file of another type": exported.replace(b"\x08\x01", b"\x08\x02", 1),
    }
    vectors += invalid({name: (data, "bad_key") for name, data in files.items()})
    return {"context": {}, "vectors": vectors}


def derived(author: bytes, epoch: int, index: int, depth: int) -> dict:
    shard = shard_of(author, epoch, depth)
    key = record_key(SWARM, epoch, depth, shard)
    expected = {
        "shard": shard,
        "record_key": key,
        "dht_key": dht_key_of(key).hex(),
        "task_seed": task_seed(author, epoch, index),
        "work_bits": work(SWARM, author, index),
    }
    name = f"epoch {epoch}, index {index}, depth {depth}"
    return valid(name, author, expected, epoch=epoch, index=index, depth=depth)


def keys() -> dict:
    alice, bob = ALICE.author, BOB.author
    vectors = [
        derived(alice, 0, 0, 0),
        derived(alice, EPOCH, 0, 2),
        derived(alice, EPOCH, 1, 2),
        derived(alice, EPOCH + 1, 1, 12),
        derived(bob, (1 << 63) - 1, 65535, 10),
    ]
    for author, epoch, authors in (
        *((alice, EPOCH, authors) for authors in (0.0, 16.0, 23.0)),
        *((bob, EPOCH, authors) for authors in (23.0, 100.0)),
        (bob, EPOCH + 1, 10000.0),
        (bob, EPOCH, 1e9),
    ):
        expected = {"depth": depth_of(author, epoch, depth_for(authors))}
        name = f"epoch {epoch}, {authors:g} authors"
        vectors.append(valid(name, author, expected, epoch=epoch, authors=authors))
    for env, number in (("gcd", 0), ("gcd", 1), ("riddles", 0), ("riddles", (1 << 63) - 1)):
        expected = {"heldout_seed": heldout_seed(env, number)}
        vectors.append(valid(f"held out: {env} {number}", env.encode(), expected, number=number))
    times = ((59.999, 60.0), (60.0, 60.0), (0.3, 0.1), (1.0, 0.1), (1750000015.5, 2.0))
    for unix, seconds in times:
        expected = {"epoch": epoch_of(unix, seconds)}
        name = f"{unix} s in epochs of {seconds} s"
        vectors.append(valid(name, b"", expected, unix=unix, epoch_seconds=seconds))
    return {"context": {"swarm_id": SWARM.hex()}, "vectors": vectors}
