"""Hypothesis strategies for everything that the wire format can hold."""

import struct
import unicodedata

from hypothesis import strategies as st

from protocol.announcement import Announcement, Offer
from protocol.codec import MAX_DEPTH, MAX_INT
from protocol.errors import ProtocolError
from protocol.profile import MAX_LINE, MAX_NAME, Profile, check_shown
from protocol.rollout import Batch, Completion, Finish, Group, Segment, Tokens, Writer
from tests.protocol.samples import ENCODING, EPOCH, MANIFEST

integers = st.integers(0, MAX_INT)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary(max_size=300)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(texts, inner, max_size=20),
    max_leaves=60,
)


def half(value: float) -> float:
    return struct.unpack("<e", struct.pack("<e", value))[0]


@st.composite
def tokens(draw) -> Tokens:
    count = draw(st.integers(1, 20))

    def column(of):
        return tuple(draw(st.lists(of, min_size=count, max_size=count)))

    return Tokens(
        ids=column(st.integers(0, (1 << 32) - 1)),
        logprobs=column(st.floats(-65504, 0).map(half)),
        versions=column(st.integers(0, 2) | integers),
    )


segments = st.builds(Segment, st.just(Writer.POLICY), texts, st.none() | tokens()) | st.builds(
    Segment, st.just(Writer.ENVIRONMENT), texts
)
completions = st.builds(
    Completion,
    st.lists(segments, min_size=1, max_size=3).map(tuple),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(Finish),
)
groups = st.builds(
    Group,
    st.just("gcd"),
    st.integers(0, 1),
    integers,
    st.integers(0, MANIFEST.max_groups_per_epoch - 1),
    st.lists(completions, min_size=2, max_size=4).map(tuple),
)
batches = st.builds(
    Batch,
    integers,
    integers,
    st.floats(0, 2**40),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=128),
    st.just(ENCODING),
    st.floats(1e-3, 1e3),
    st.integers(1, MAX_INT),
    st.lists(groups, min_size=1, max_size=4, unique_by=lambda g: (g.epoch, g.index)).map(tuple),
)


@st.composite
def offers(draw) -> Offer:
    count = draw(st.integers(1, 1024))
    return Offer(
        draw(st.binary(min_size=32, max_size=32)),
        draw(st.integers(1, MANIFEST.max_frame_bytes)),
        count,
        draw(st.binary(min_size=8, max_size=8)),
        draw(st.integers(0, count)),
    )


announcements = st.builds(
    Announcement,
    st.just(EPOCH),
    st.integers(0, MAX_DEPTH),
    st.just(0),
    integers,
    integers,
    st.floats(EPOCH * 60.0, (EPOCH + 4) * 60.0, exclude_min=True),
    integers,
    st.lists(offers(), max_size=4, unique_by=lambda offer: offer.content_id).map(tuple),
)


def is_told(text: str) -> bool:
    try:
        check_shown(text, "text", MAX_LINE)
    except ProtocolError:
        return False
    return True


def of_profiles(most: int) -> st.SearchStrategy[str]:
    """Generate text of any script that a profile may hold, including empty text."""
    letters = st.characters(exclude_categories=["C", "Z"])
    words = st.lists(st.text(letters, min_size=1, max_size=most // 4), max_size=3).map(" ".join)
    return words.map(lambda text: unicodedata.normalize("NFC", text)).filter(
        lambda text: is_told(text) and len(text) <= most and len(text.encode()) <= 3 * most
    )


labels = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=32)
profiles = st.builds(
    Profile,
    of_profiles(MAX_NAME).filter(bool),
    of_profiles(MAX_LINE),
    labels,
    labels,
    st.floats(0, 2**40),
)
