"""Damaged or arbitrary signed messages of every kind are refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import envelope
from protocol.announcement import open_announcement
from protocol.errors import ProtocolError
from protocol.frame import open_frame, seal
from protocol.manifest import open_manifest
from protocol.profile import open_profile
from tests.protocol import cases_profile, cases_record, samples
from tests.protocol.samples import ALICE, MALLORY, MANIFEST, SWARM

READ = {
    envelope.MANIFEST: open_manifest,
    envelope.ANNOUNCEMENT: lambda data: open_announcement(data, SWARM, MANIFEST),
    envelope.PROFILE: lambda data: open_profile(data, SWARM),
    envelope.FRAME: lambda data: open_frame(data, SWARM, MANIFEST),
}
THREE = samples.batch(*map(samples.group, range(3)))
MESSAGES = {
    "manifest": (envelope.MANIFEST, samples.SIGNED),
    "announcement": (envelope.ANNOUNCEMENT, cases_record.SIGNED),
    "profile": (envelope.PROFILE, cases_profile.SIGNED),
    "plain frame": (envelope.FRAME, seal(THREE, ALICE, SWARM, compress=False)),
    "compressed frame": (envelope.FRAME, seal(THREE, ALICE, SWARM)),
}


@pytest.mark.parametrize(("kind", "message"), MESSAGES.values(), ids=MESSAGES)
def test_corrupt_or_truncated_message_is_refused(kind, message):
    for at in range(len(message)):
        flipped = [bytes([message[at] ^ mask]) for mask in (0x01, 0x80, 0xFF)]
        altered = [message[:at] + byte + message[at + 1 :] for byte in flipped]
        for wrong in (message[:at], *altered):
            with pytest.raises(ProtocolError):
                READ[kind](wrong)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_and_signed_bodies_raise_protocol_errors(data):
    for kind, read in READ.items():
        swarm = envelope.NO_SWARM if kind == envelope.MANIFEST else SWARM
        for value in (data, envelope.close(kind, swarm, MALLORY, data)):
            with pytest.raises(ProtocolError):
                read(value)
