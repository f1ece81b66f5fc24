"""Peers lie about groups: each lie is refused by name, and the node continues."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import envelope
from protocol.announcement import Offer, offer_of
from protocol.envelope import compress_body
from protocol.frame import open_frame
from protocol.rollout import Batch, Group, encode_batch
from swarm.pool import Pool
from tests.swarm.admission_parts import Gate, Peer
from tests.swarm.experience_parts import START


@pytest.fixture
def gate() -> Gate:
    return Gate()


mallory, anna = (pytest.fixture(name=name)(lambda gate: Peer(gate)) for name in ("mallory", "anna"))


def signed(gate: Gate, peer: Peer, *groups: Group) -> bytes:
    """Return a frame with a valid signature around any groups."""
    batch = Batch(1, 5, START, "tiny", b"\x02" * 32, 1.0, 16, groups)
    body = compress_body(encode_batch(batch), compress=False)
    return envelope.close(envelope.FRAME, gate.swarm_id, peer.identity, body)


def under(author: bytes, frame: bytes) -> bytes:
    return frame[:40] + author + frame[72:]


NO_NUMBERS = (float("nan"), float("inf"), -float("inf"))
OTHER_SWARM, SMALL_ORDER = b"\x09" * 32, bytes([1]) + bytes(31)
UNKNOWN = ({"env": "rm -rf"}, {"env": "poems"}, {"level": 2})
FORGED: dict[str, tuple[str, Callable[[Gate, Peer], bytes]]] = {
    "of another swarm": ("wrong_swarm", lambda _, her: her.frame(her.group(0), swarm=OTHER_SWARM)),
    "under a weak key": ("bad_key", lambda _, her: under(SMALL_ORDER, her.frame(her.group(0)))),
    "of a draw too many": (
        "bad_schema",
        lambda g, her: signed(g, her, *map(her.group, (0, g.manifest.max_groups_per_epoch))),
    ),
    **{
        f"of an unknown task: {change}": (
            "bad_schema",
            lambda gate, her, change=change: signed(gate, her, replace(her.group(0), **change)),
        )
        for change in UNKNOWN
    },
    "too long": (
        "too_large",
        lambda gate, her: her.frame(her.group(0)) + bytes(gate.manifest.max_frame_bytes),
    ),
    "with too much text": (
        "too_large",
        lambda gate, her: signed(gate, her, her.group(0, ["right", "x" * 70_000])),
    ),
}


@pytest.mark.parametrize(("reason", "forge"), FORGED.values(), ids=FORGED)
def test_invalid_frame_is_refused_and_penalized(gate, mallory, reason, forge):
    assert gate.admit(forge(gate, mallory), mallory.author) == []
    assert gate.refused() == {reason: 1}
    assert gate.accounts.get(mallory.author).penalties > 0
    assert gate.verifier.calls == 0


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        *(({"claims": [claim, 0.0]}, {"bad_encoding", "bad_schema"}) for claim in NO_NUMBERS),
        *(({"texts": ["right"] * n}, {"bad_schema", "too_many_items"}) for n in (0, 1, 65)),
    ],
    ids=[*map(str, NO_NUMBERS), "no completion", "one completion", "65 completions"],
)
def test_invalid_rewards_and_group_sizes_are_refused(gate, mallory, change, reasons):
    assert gate.admit(signed(gate, mallory, mallory.group(0, **change)), mallory.author) == []
    assert set(gate.refused()) <= reasons
    assert gate.accounts.get(mallory.author).penalties > 0


def test_mallory_is_banned_for_a_frame_under_annas_name(gate, mallory, anna):
    frame = under(anna.author, mallory.frame(mallory.group(0)))
    assert gate.admit(frame, mallory.author) == []
    assert gate.refused() == {"bad_signature": 1}
    assert gate.accounts.banned(mallory.author)
    assert not gate.accounts.banned(anna.author)
    assert gate.admit(anna.frame(anna.group(0)), anna.author) == [0]


def test_mallory_is_banned_for_offering_annas_frame(gate, mallory, anna):
    frame = anna.frame(anna.group(0))
    assert gate.admit(frame, mallory.author) == []
    assert gate.refused() == {"wrong_author": 1}
    assert gate.accounts.banned(mallory.author)
    assert gate.admit(frame, anna.author) == [0]


def test_gate_does_not_open_banned_frames(gate, mallory):
    gate.accounts.refuse(mallory.author, "bad_signature")
    assert gate.admit(mallory.frame(mallory.group(0)), mallory.author) == []
    assert gate.refused() == {"banned": 1}
    assert gate.verifier.calls == 0


GATE = Gate()
# Without this, penalties ban the author and later frames are not examined.
GATE.accounts.refuse = lambda author, reason, n: None
VICTIM = Peer(GATE)
FRAME = VICTIM.frame(VICTIM.group(0))


@settings(max_examples=60, deadline=None)
@given(st.integers(0), st.integers(1, 255))
def test_a_frame_with_any_byte_changed_is_refused(position, change):
    frame = bytearray(FRAME)
    frame[position % len(frame)] ^= change
    assert GATE.admission.examine(bytes(frame), VICTIM.author) == []
    assert GATE.verifier.calls == 0


def test_two_groups_for_one_sample_are_equivocation(gate, mallory, anna):
    assert gate.admit(mallory.frame(mallory.group(0)), mallory.author) == [0]
    other = mallory.frame(mallory.group(0, ["right", "right", "wrong"]), sequence=2)
    assert gate.admit(other, mallory.author) == []
    assert gate.refused() == {"equivocation": 1}
    assert gate.accounts.get(mallory.author).penalties > 0
    assert gate.admit(anna.frame(anna.group(0)), anna.author) == [0], "anna's sample is another one"


def test_mallory_cannot_retry_a_refused_sample(gate, mallory):
    lie = mallory.frame(mallory.group(0, ["wrong", "wrong"], claims=[1.0, 0.0]))
    assert gate.admit(lie, mallory.author) == []
    honest = mallory.frame(mallory.group(0), sequence=2)
    assert gate.admit(honest, mallory.author) == []
    assert gate.refused() == {"reward_mismatch": 1, "equivocation": 1}


def test_resealed_group_is_refused_as_replay(gate, mallory):
    group = mallory.group(0)
    admitted = [gate.admit(mallory.frame(group, sequence=n), mallory.author) for n in range(4)]
    assert admitted == [[0], [], [], []]
    assert gate.refused() == {"replay": 3}
    assert gate.verifier.calls == 1


@pytest.mark.parametrize(
    "claims", [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.998, 0.0], [1e9, 0.0], [-1.0, 0.0]]
)
def test_gate_refuses_only_the_group_with_false_rewards(gate, mallory, claims):
    frame = mallory.frame(mallory.group(0, claims=claims), mallory.group(1))
    assert gate.admit(frame, mallory.author) == [1]
    assert gate.refused() == {"reward_mismatch": 1}
    account = gate.accounts.get(mallory.author)
    assert account.refused == {"reward_mismatch": 1}
    assert account.penalties == 1.0


def test_frame_with_only_false_rewards_bans_its_author(gate, mallory):
    groups = [mallory.group(i, ["wrong", "wrong"], claims=[1.0, 0.0]) for i in range(8)]
    assert gate.admit(mallory.frame(*groups), mallory.author) == []
    assert gate.accounts.banned(mallory.author)
    assert gate.admit(mallory.frame(mallory.group(20), sequence=2), mallory.author) == []


def test_one_bad_completion_refuses_the_whole_group(gate, mallory):
    texts = ["right", *["wrong"] * 6, "refuse:evaluates_text"]
    frame = mallory.frame(mallory.group(0, texts), mallory.group(1))
    assert gate.admit(frame, mallory.author) == [1]


def test_flo_evicts_only_her_own_groups_from_replay_buffer(gate, anna):
    pool = Pool(gate.journal, 16, 600.0, gate.clock, gate.counters)
    flo = Peer(gate)
    pool.add(gate.admission.examine(anna.frame(*map(anna.group, range(4))), anna.author))
    for start in range(0, 32, 8):
        groups = map(flo.group, range(start, start + 8))
        pool.add(gate.admission.examine(flo.frame(*groups), flo.author))
    held = [c.key.author for c in pool.fresh()]
    assert (held.count(anna.author), held.count(flo.author)) == (4, 12)


def sealed(gate: Gate, peer: Peer, *rewards: list[float]) -> tuple[bytes, Offer]:
    """Return a frame of true groups and an honest publisher's offer of it."""
    texts = [["right" if r else "wrong" for r in group] for group in rewards]
    frame = peer.frame(*(peer.group(i, words) for i, words in enumerate(texts)))
    batch = open_frame(frame, gate.swarm_id, gate.manifest).batch
    return frame, offer_of(frame, batch, gate.manifest)


@pytest.mark.parametrize(
    "lie",
    [{"informative": 2}, {"informative": 0}, {"groups": 3}, {"env_digest": b"\xff" * 8}],
    ids=lambda lie: next(iter(lie)),
)
def test_mallory_is_penalized_for_a_false_offer(gate, mallory, lie):
    frame, offer = sealed(gate, mallory, [1, 0], [0, 0])
    assert gate.admission.examine(frame, mallory.author, replace(offer, **lie)) == []
    assert gate.refused() == {"offer_mismatch": 1}
    assert gate.accounts.get(mallory.author).penalties == 1.0
    assert len(gate.admission.examine(frame, mallory.author, offer)) == 2


@given(st.lists(st.lists(st.sampled_from([0, 1]), min_size=2, max_size=4), min_size=1, max_size=6))
def test_honest_offer_always_matches_its_frame(rewards):
    gate = Gate()
    anna = Peer(gate)
    frame, offer = sealed(gate, anna, *rewards)
    admitted = gate.admission.examine(frame, anna.author, offer)
    assert len(admitted) == offer.groups
    assert gate.refused() == {}
