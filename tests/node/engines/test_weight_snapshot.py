import os

import pytest
import torch
from safetensors import safe_open

from node.engines import weight_snapshot as snapshots
from node.engines.weight_snapshot import WEIGHTS, Snapshot, SnapshotError, load_into, opened
from node.errors import NodeError
from node.policy.policy import Policy
from tests.support import policy_of, random_policy


def untied_policy(seed: int = 0) -> Policy:
    config = random_policy().model.config
    config.tie_word_embeddings = False
    return policy_of(config, "untied", seed)


def written(policy: Policy, place, as_checkpoint: bool = False) -> Snapshot:
    return Snapshot(policy, as_checkpoint=as_checkpoint, place=place)


BOTH = pytest.mark.parametrize("make", [random_policy, untied_policy], ids=["tied", "untied"])


@BOTH
def test_load_into_restores_weights_and_version(tmp_path, make):
    policy, other = make(seed=1), make(seed=2)
    policy.version = 17
    assert load_into(other.model, written(policy, tmp_path).folder) == 17
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


@BOTH
def test_checkpoint_weights_have_the_names_of_save_pretrained(tmp_path, make):
    policy = make()
    policy.model.save_pretrained(tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as saved:
        names = set(saved.keys())
    with opened(written(policy, tmp_path, as_checkpoint=True).folder) as (_, weights):
        assert {name for name, _ in weights} == names


def test_open_reader_keeps_old_weights_during_a_new_write(tmp_path):
    policy, other = random_policy(seed=1), random_policy(seed=2)
    other.version = 1
    snapshot = written(policy, tmp_path)
    with opened(snapshot.folder) as (version, weights):
        snapshot.write(other)
        assert version == 0
        for name, tensor in weights:
            assert torch.equal(tensor, policy.model.state_dict()[name])
    with opened(snapshot.folder) as (version, _):
        assert version == 1


def test_interrupted_write_leaves_earlier_weights_readable(tmp_path):
    policy, reader = random_policy(), random_policy(seed=1)
    snapshot = written(policy, tmp_path)
    whole = (snapshot.folder / WEIGHTS).read_bytes()
    (snapshot.folder / f"{WEIGHTS}.draft").write_bytes(whole[: len(whole) // 2])
    assert load_into(reader.model, snapshot.folder) == 0
    policy.version = 1
    snapshot.write(policy)
    assert load_into(reader.model, snapshot.folder) == 1


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_damaged_weights_raise_error_and_leave_model_unchanged(tmp_path, share):
    other = random_policy(seed=2)
    before = {name: t.clone() for name, t in other.model.state_dict().items()}
    folder = written(random_policy(seed=1), tmp_path).folder
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(SnapshotError, match=WEIGHTS):
        load_into(other.model, folder)
    assert all(torch.equal(t, before[name]) for name, t in other.model.state_dict().items())


@pytest.mark.parametrize(
    ("hidden", "wrong"),
    [(64, "lm_head.weight is missing"), (32, "model.embed_tokens.weight does not fit")],
)
def test_load_into_rejects_another_models_weights(tmp_path, hidden, wrong):
    snapshot = written(random_policy(hidden=hidden), tmp_path)
    with pytest.raises(SnapshotError, match=wrong):
        load_into(untied_policy().model, snapshot.folder)


def test_reader_errors_are_not_reported_as_damage(tmp_path):
    snapshot = written(random_policy(), tmp_path)
    with pytest.raises(KeyError, match="no such layer"), opened(snapshot.folder):
        raise KeyError("no such layer")
    snapshot.remove()


def test_failed_write_keeps_earlier_weights_and_names_the_file(tmp_path):
    policy = random_policy()
    snapshot = written(policy, tmp_path)
    policy.version = 1
    snapshot.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match=WEIGHTS):
        snapshot.write(policy)
    assert load_into(policy.model, tmp_path / "elsewhere") == 0


def test_snapshot_removes_only_old_folders_of_dead_owners(tmp_path):
    living = written(random_policy(), tmp_path)
    abandoned, young = (tmp_path / f"{snapshots.PREFIX}{name}" for name in ("abandoned", "young"))
    for folder in (abandoned, young):
        folder.mkdir()
        (folder / WEIGHTS).write_bytes(b"x")
    for folder in (living.folder, abandoned):
        os.utime(folder, (0, 0))
    another = written(random_policy(), tmp_path)
    assert set(tmp_path.iterdir()) == {living.folder, another.folder, young}


def test_snapshot_uses_temp_folder_without_shared_memory(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(snapshots, "ROOM", 1 << 60)
    monkeypatch.setattr(snapshots.tempfile, "tempdir", str(tmp_path))
    snapshot = Snapshot(random_policy(), as_checkpoint=False)
    assert snapshot.folder.parent == tmp_path
    if snapshots.SHARED_MEMORY.is_dir():
        assert "MiB free" in caplog.text
    snapshot.remove()
    assert not snapshot.folder.exists()
