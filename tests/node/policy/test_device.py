"""Which device a policy is put on, and where numbers are drawn for it."""

from __future__ import annotations

import pytest
import torch

from node.policy.device import device_named, draws_on, give_back, wait_for
from node.policy.model_files import PolicyError


def test_auto_takes_a_gpu_of_cuda_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has=has: has)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert device_named("auto").type == kind


def test_a_device_that_is_not_there_is_refused_by_its_key() -> None:
    with pytest.raises(PolicyError, match=r"policy\.device.*'cuda:99'"):
        device_named("cuda:99")


def test_numbers_are_drawn_where_there_are_some_of_64_bits() -> None:
    """Tokens are drawn in float64, which a Mac's GPU refuses."""
    drawn = {kind: draws_on(torch.device(kind)).type for kind in ("cpu", "cuda", "mps")}
    assert drawn == {"cpu": "cpu", "cuda": "cuda", "mps": "cpu"}


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_memory_is_given_back_on_the_device_that_has_a_store_of_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))
    give_back(torch.device(kind))
    assert emptied == [kind] * (kind != "cpu")


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_who_takes_a_time_waits_for_the_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(device.type))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    wait_for(torch.device(kind))
    assert waited == [kind] * (kind != "cpu")
