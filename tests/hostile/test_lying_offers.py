"""Larry's offers promise other frames than he serves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.announcement import Offer, offer_of
from protocol.frame import open_frame
from tests.swarm.admission_parts import Gate, Peer


def sealed(gate: Gate, peer: Peer, *rewards: list[float]) -> tuple[bytes, Offer]:
    """A frame of true groups and the offer that an honest publisher makes of it."""
    texts = [["right" if r else "wrong" for r in group] for group in rewards]
    frame = peer.frame(*(peer.group(i, words) for i, words in enumerate(texts)))
    return frame, offer_of(
        frame, open_frame(frame, gate.swarm_id, gate.manifest).batch, gate.manifest
    )


@pytest.mark.parametrize(
    "lie",
    [{"informative": 2}, {"informative": 0}, {"groups": 3}, {"env_digest": b"\xff" * 8}],
    ids=lambda lie: next(iter(lie)),
)
def test_larry_is_struck_for_an_offer_that_is_not_true_of_its_frame(lie):
    gate = Gate()
    larry = Peer(gate)
    frame, offer = sealed(gate, larry, [1, 0], [0, 0])
    assert gate.admission.examine(frame, larry.author, replace(offer, **lie)) == []
    assert gate.refused() == {"offer_mismatch": 1}
    assert gate.accounts.get(larry.author).strikes == 1.0


@given(st.lists(st.lists(st.sampled_from([0, 1]), min_size=2, max_size=4), min_size=1, max_size=6))
def test_an_honest_offer_is_always_true_of_its_frame(rewards):
    gate = Gate()
    anna = Peer(gate)
    frame, offer = sealed(gate, anna, *rewards)
    admitted = gate.admission.examine(frame, anna.author, offer)
    assert len(admitted) == offer.groups
    assert gate.refused() == {}
