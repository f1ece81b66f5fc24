"""Writes the test vectors beside it: ``python -m tests.protocol.make_vectors`` in the root.

Every file is ``{"context": …, "vectors": [{"name", "input", …, "expected" | "error"}]}``, byte
strings in lower-case hex. ``docs/protocol.md`` tells how to read each file.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from protocol.announcement import (
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
from protocol.codec import encode
from protocol.frame import open_frame, seal
from protocol.identity import Identity
from protocol.manifest import Manifest, find_nonce, open_manifest, sign_manifest, swarm_id, work
from protocol.messages import (
    GossipRequest,
    PullStatus,
    encode_gossip_request,
    encode_gossip_response,
    encode_pull_response,
    record_digest,
)
from protocol.profile import open_profile
from tests.protocol import (
    cases_answers,
    cases_codec,
    cases_frame,
    cases_manifest,
    cases_profile,
    cases_record,
    cases_transcripts,
)
from tests.protocol.samples import (
    ALICE,
    BOB,
    CLOSED,
    EPOCH,
    FRAME,
    MALLORY,
    MANIFEST,
    SWARM,
    WORKING,
    batch,
)
from tests.protocol.test_identity import LIBP2P_KEY, SMALL_ORDER
from tests.protocol.views import tagged, view

FOLDER = Path(__file__).parent / "vectors"
DOMAIN = b"swarm-node/1/test"


def invalid(cases: dict[str, tuple[bytes, str]], **fields: object) -> list[dict]:
    return [
        {"name": name, "input": data.hex(), **fields, "error": error}
        for name, (data, error) in cases.items()
    ]


def codec() -> dict:
    valid = [
        {"name": name, "input": encode(value).hex(), "expected": tagged(value)}
        for name, value in cases_codec.VALID.items()
    ]
    wrong = [
        {"name": name, "input": spelled, "error": error}
        for name, (spelled, error) in cases_codec.INVALID.items()
    ]
    return {"context": {"limits": asdict(cases_codec.LIMITS)}, "vectors": valid + wrong}


def identity() -> dict:
    """Key files, public names and signatures."""
    signature = ALICE.sign(DOMAIN, b"message").hex()
    base = {"author": ALICE.author.hex(), "domain": DOMAIN.decode(), "signature": signature}
    entries = [
        {
            "name": f"key file {number}",
            "input": data.hex(),
            "expected": {
                "author": Identity.from_bytes(data).author.hex(),
                "peer_id": Identity.from_bytes(data).peer_id,
            },
        }
        for number, data in enumerate((LIBP2P_KEY, ALICE.export(), BOB.export()))
    ]
    message = b"message".hex()
    entries.append({"name": "signature", "input": message, **base, "expected": True})
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
    ]
    wrong += [
        (f"author of small order {n}", {"author": k}, "bad_key") for n, k in enumerate(SMALL_ORDER)
    ]
    for name, change, error in wrong:
        entries.append({"name": name, "input": message, **base, **change, "error": error})
    return {"context": {}, "vectors": entries}


def keys() -> dict:
    entries = []
    for author, epoch, index, depth in [
        (ALICE, 0, 0, 0),
        (ALICE, EPOCH, 0, 2),
        (ALICE, EPOCH, 1, 2),
        (ALICE, EPOCH + 1, 1, 12),
        (BOB, (1 << 63) - 1, 65535, 10),
    ]:
        shard = shard_of(author.author, epoch, depth)
        key = record_key(SWARM, epoch, depth, shard)
        expected = {
            "shard": shard,
            "record_key": key,
            "dht_key": dht_key_of(key).hex(),
            "task_seed": task_seed(author.author, epoch, index),
            "work_bits": work(SWARM, author.author, index),
        }
        entries.append(
            {
                "name": f"epoch {epoch}, index {index}, depth {depth}",
                "input": author.author.hex(),
                "epoch": epoch,
                "index": index,
                "depth": depth,
                "expected": expected,
            }
        )
    for author, epoch, authors in [
        (ALICE, EPOCH, 0.0),
        (ALICE, EPOCH, 16.0),
        (ALICE, EPOCH, 23.0),
        (BOB, EPOCH, 23.0),
        (BOB, EPOCH, 100.0),
        (BOB, EPOCH + 1, 10000.0),
        (BOB, EPOCH, 1e9),
    ]:
        depth = depth_of(author.author, epoch, depth_for(authors))
        entries.append(
            {
                "name": f"epoch {epoch}, {authors:g} authors",
                "input": author.author.hex(),
                "epoch": epoch,
                "authors": authors,
                "expected": {"depth": depth},
            }
        )
    for env, number in [("gcd", 0), ("gcd", 1), ("riddles", 0), ("riddles", (1 << 63) - 1)]:
        expected = {"heldout_seed": heldout_seed(env, number)}
        entry = {"name": f"held out: {env} {number}", "input": env.encode().hex(), "number": number}
        entries.append({**entry, "expected": expected})
    for unix, seconds in [
        (59.999, 60.0),
        (60.0, 60.0),
        (0.3, 0.1),
        (1.0, 0.1),
        (1750000015.5, 2.0),
    ]:
        entry = {"name": f"{unix} s in epochs of {seconds} s", "input": "", "unix": unix}
        expected = {"epoch": epoch_of(unix, seconds)}
        entries.append({**entry, "epoch_seconds": seconds, "expected": expected})
    return {"context": {"swarm_id": SWARM.hex()}, "vectors": entries}


def manifest() -> dict:
    valid = [
        {
            "name": name,
            "input": data.hex(),
            "expected": {"swarm_id": swarm_id(data).hex(), "manifest": view(open_manifest(data))},
        }
        for name, data in cases_manifest.VALID.items()
    ]
    return {"context": {}, "vectors": valid + invalid(cases_manifest.INVALID)}


def frame() -> dict:
    valid = [
        {
            "name": name,
            "input": data.hex(),
            "expected": view(open_frame(data, SWARM, MANIFEST)),
        }
        for name, data in cases_frame.VALID.items()
    ]
    closed = in_swarm(CLOSED)
    author = seal(batch(), MALLORY, bytes.fromhex(closed["swarm_id"]))
    stranger = {"author off the allow list": (author, "not_admitted")}
    wrong = invalid(cases_frame.INVALID) + invalid(stranger, **closed)
    return {"context": in_swarm(), "vectors": valid + wrong}


def announcement() -> dict:
    """Records, and the same valid record in right and wrong places (``place``)."""
    valid = []
    for name, data in cases_record.VALID.items():
        author, opened = open_announcement(data, SWARM, MANIFEST)
        expected = {"author": author.hex(), "announcement": view(opened)}
        valid.append({"name": name, "input": data.hex(), "expected": expected})
    place = {name: view(value) for name, value in cases_record.PLACE.items()}
    placed = {**valid[0], "name": "in its place", "place": place}
    misplaced = [
        {
            "name": name,
            "input": cases_record.SIGNED.hex(),
            "place": {**place, **{field: view(value) for field, value in change.items()}},
            "error": error,
        }
        for name, (change, error) in cases_record.MISPLACED.items()
    ]
    wrong = invalid(cases_record.INVALID)
    wrong += idle()
    return {"context": in_swarm(), "vectors": [*valid, placed, *wrong, *misplaced]}


def idle() -> list[dict]:
    """An author who did not do the work that the manifest asks for, and one who did."""
    working = in_swarm(WORKING)
    swarm = bytes.fromhex(working["swarm_id"])
    nonce = find_nonce(WORKING.admission, swarm, ALICE.author)
    lazy = sign_announcement(cases_record.announcement(nonce=nonce + 1), ALICE, swarm)
    paid = sign_announcement(cases_record.announcement(nonce=nonce), ALICE, swarm)
    author, opened = open_announcement(paid, swarm, WORKING)
    expected = {"author": author.hex(), "announcement": view(opened)}
    valid = {"name": "work done", "input": paid.hex(), **working, "expected": expected}
    return [valid, *invalid({"no work done": (lazy, "not_admitted")}, **working)]


def messages() -> dict:
    """Stream messages; ``kind`` names the decoder."""
    records = list(cases_record.VALID.values())[:2]
    known = tuple(sorted(map(record_digest, records)))
    request = GossipRequest(after=EPOCH - 2, limit=64, known=known)
    entries = [
        {
            "name": "frame found",
            "input": encode_pull_response(PullStatus.OK, FRAME).hex(),
            "kind": "pull_response",
            "expected": {"status": 0, "frame": FRAME.hex()},
        },
        {
            "name": "frame not found",
            "input": encode_pull_response(PullStatus.NOT_FOUND).hex(),
            "kind": "pull_response",
            "expected": {"status": 1, "frame": ""},
        },
        {
            "name": "what is new?",
            "input": encode_gossip_request(request).hex(),
            "kind": "gossip_request",
            "expected": view(request),
        },
        {
            "name": "two records",
            "input": encode_gossip_response(records).hex(),
            "kind": "gossip_response",
            "expected": view(records),
        },
    ]
    entries += invalid(cases_record.PULL_RESPONSES, kind="pull_response")
    entries += invalid(cases_record.GOSSIP_REQUESTS, kind="gossip_request")
    entries += invalid(cases_record.GOSSIP_RESPONSES, kind="gossip_response")
    return {"context": {}, "vectors": entries}


def profile() -> dict:
    valid = []
    for name, data in cases_profile.VALID.items():
        author, opened = open_profile(data, SWARM)
        expected = {"author": author.hex(), "profile": view(opened)}
        valid.append({"name": name, "input": data.hex(), "expected": expected})
    context = {"swarm_id": SWARM.hex()}
    return {"context": context, "vectors": valid + invalid(cases_profile.INVALID)}


def answers() -> dict:
    """What of a completion is scored."""
    entries = [
        {"name": name, "input": text.encode().hex(), "extract": how, "expected": answer}
        for name, (how, text, answer) in cases_answers.ANSWERS.items()
    ]
    return {"context": {}, "vectors": entries}


def transcripts() -> dict:
    """Trajectories that are played again."""
    entries = [
        {
            "name": name,
            "input": "",
            "number": case.number,
            "settings": case.settings,
            "turns": list(case.turns),
            "cut": case.cut,
            "expected": {
                "first": cases_transcripts.first(case.number, case.settings),
                **cases_transcripts.outcome(case),
            },
        }
        for name, case in cases_transcripts.TRANSCRIPTS.items()
    ]
    return {"context": {"env": "guess", "version": "1"}, "vectors": entries}


def in_swarm(manifest: Manifest = MANIFEST) -> dict:
    signed = sign_manifest(manifest, ALICE)
    return {"swarm_id": swarm_id(signed).hex(), "manifest": signed.hex()}


FILES = {
    "codec": codec,
    "identity": identity,
    "keys": keys,
    "manifest": manifest,
    "frame": frame,
    "announcement": announcement,
    "messages": messages,
    "profile": profile,
    "answers": answers,
    "transcripts": transcripts,
}


def write() -> None:
    """Writes all files anew."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in FILES.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    write()
