"""Seeds and earlier findings of the fuzzer raise only named errors."""

import pytest

from tests.fuzz.target import TARGETS
from tests.fuzz.targets import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_corpus_inputs_raise_only_named_errors(name):
    target = TARGETS[name]()
    assert target.name == name
    assert target.inputs()
    for data in target.inputs():
        target(data)
