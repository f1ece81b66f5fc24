"""Inputs that hypothesis mutates from a corpus, for systems without atheris."""

from collections.abc import Callable, Sequence

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_CHANGES = ("put", "cut", "copy", "flip")


@st.composite
def bent(draw: st.DrawFn, seeds: Sequence[bytes], longest: int) -> bytes:
    """Draw a seed with up to eight changes: bytes inserted, cut, copied or flipped."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for change in draw(st.lists(st.sampled_from(_CHANGES), max_size=8)):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 16))
        if change == "put":
            data[at:at] = draw(st.binary(max_size=16))
        elif change == "cut":
            del data[at : at + size]
        elif change == "copy":
            data[at:at] = data[max(0, at - size) : at]
        elif at < len(data):
            data[at] ^= draw(st.integers(1, 255))
    return bytes(data[:longest])


def run(
    attempt: Callable[[bytes], None], seeds: Sequence[bytes], longest: int, inputs: int, seed: int
) -> None:
    """Try this number of inputs.

    Raises:
        Exception: a finding.
    """

    @hypothesis.seed(seed)
    @settings(
        max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.one_of(bent(seeds, longest), st.binary(max_size=longest)))
    def each(data: bytes) -> None:
        attempt(data)

    each()
