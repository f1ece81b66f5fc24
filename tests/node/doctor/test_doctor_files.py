"""Checks of model, swarm and task files."""

import shutil
from pathlib import Path

import pytest

from node.config.config import Config
from node.doctor.files import check_model_files, check_pinned
from node.network.creation import create_swarm
from node.policy.model_source import shipped_folder
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import AllowList, ProofOfWork

TASK_SET = """extract = "text"
template = "{question}"
[[env]]
name = "sums"
source = "jsonl"
file = "sums.jsonl"
levels = [{ match = "exact" }]
"""


@pytest.fixture
def model(tmp_path) -> Path:
    return Path(shutil.copytree(shipped_folder("tiny"), tmp_path / "model"))


def checked(model: Path | str):
    config = Config.with_overrides({"policy.model": str(model)})
    return [each.level for each in check_model_files(config)]


def test_doctor_checks_local_model_files_but_no_hub(model):
    assert checked("tiny") == checked(model) == ["ok"]
    assert checked("somebody/some-model") == []
    assert checked(model / "nothing") == ["fail"]
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert checked(model) == ["fail"]
    weights.unlink()
    (found,) = check_model_files(Config.with_overrides({"policy.model": str(model)}))
    assert found.level == "fail" and "model.safetensors" in found.found and found.remedy


def test_doctor_finds_a_missing_or_different_task_file(tmp_path):
    (tmp_path / "set.toml").write_text(TASK_SET)
    tasks = tmp_path / "sums.jsonl"
    tasks.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    folder = RunFolder(tmp_path / "run").create()
    folder.manifest.write_bytes(
        create_swarm(Identity.generate(), name="s", task_set=str(tmp_path / "set.toml"))
    )
    config = Config.with_overrides({"tasks.files.sums": str(tasks)})
    assert [each.level for each in check_pinned(config, folder)] == ["ok"]
    assert [each.level for each in check_pinned(Config(), folder)] == ["warn", "warn"]
    tasks.write_text('{"prompt": "1 + 1", "answer": "3"}\n')
    (other,) = check_pinned(config, folder)
    tasks.unlink()
    (missing,) = check_pinned(config, folder)
    assert other.level == missing.level == "fail" and "tasks.files.sums" in missing.remedy
    assert "is not the swarm's file" in other.found and "No such file" in missing.found


def test_doctor_reports_an_unmet_admission_rule(tmp_path):
    folder, creator = RunFolder(tmp_path).create(), Identity.generate()
    own = Identity.create(folder.identity)

    def admission(rule):
        manifest = create_swarm(creator, name="s", admission=rule)
        folder.manifest.write_bytes(manifest)
        found = check_pinned(Config(), folder)
        return [each for each in found if each.check == "admission"]

    assert admission(None) == []
    (excluded,) = admission(AllowList((creator.author,)))
    assert excluded.level == "warn" and own.peer_id in excluded.found and excluded.remedy
    (listed,) = admission(AllowList((own.author,)))
    (short,), (long,) = admission(ProofOfWork(1)), admission(ProofOfWork(40))
    assert (listed.level, short.level, long.level) == ("ok", "ok", "fail")
    folder.identity.unlink()
    assert admission(AllowList((creator.author,))) == [], "another check reports the missing key"
