"""Seeds and former findings of the fuzzer end with a named error."""

import pytest

from tests.fuzz.target import TARGETS
from tests.fuzz.targets import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_every_input_of_the_corpus_ends_by_name(name):
    target = TARGETS[name]()
    assert target.name == name
    assert target.inputs()
    for data in target.inputs():
        target(data)
