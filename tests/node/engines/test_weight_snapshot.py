from __future__ import annotations

import os

import pytest
import torch
from safetensors import safe_open
from transformers import Qwen3Config, Qwen3ForCausalLM

from node.engines import weight_snapshot as snapshots
from node.engines.weight_snapshot import WEIGHTS, Snapshot, SnapshotError, load_into, opened
from node.errors import NodeError
from node.policy.policy import Policy
from tests.support import character_tokenizer, random_policy


def untied_policy(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=98,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=False,
    )
    return Policy(Qwen3ForCausalLM(config), character_tokenizer(), "untied")


@pytest.mark.parametrize("make", [random_policy, untied_policy], ids=["tied", "untied"])
def test_another_model_becomes_the_one_that_was_written(tmp_path, make):
    policy, other = make(seed=1), make(seed=2)
    policy.version = 17
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    assert load_into(other.model, snapshot.folder) == 17
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


@pytest.mark.parametrize("make", [random_policy, untied_policy], ids=["tied", "untied"])
def test_as_a_checkpoint_the_weights_have_the_names_that_save_pretrained_gives(tmp_path, make):
    policy = make()
    policy.model.save_pretrained(tmp_path / "saved")
    snapshot = Snapshot(policy, as_checkpoint=True, place=tmp_path)
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as saved:
        names = set(saved.keys())
    with opened(snapshot.folder) as (_, weights):
        assert {name for name, _ in weights} == names


def test_a_reader_of_the_earlier_weights_is_not_disturbed_by_newer_ones(tmp_path):
    policy, other = random_policy(seed=1), random_policy(seed=2)
    other.version = 1
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    with opened(snapshot.folder) as (version, weights):
        snapshot.write(other)
        assert version == 0
        for name, tensor in weights:
            assert torch.equal(tensor, policy.model.state_dict()[name])
    with opened(snapshot.folder) as (version, _):
        assert version == 1


def test_a_writer_killed_half_way_leaves_the_earlier_weights_to_be_read(tmp_path):
    policy = random_policy()
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    whole = (snapshot.folder / WEIGHTS).read_bytes()
    (snapshot.folder / f"{WEIGHTS}.draft").write_bytes(whole[: len(whole) // 2])
    assert load_into(random_policy(seed=1).model, snapshot.folder) == 0
    policy.version = 1
    snapshot.write(policy)
    assert load_into(random_policy(seed=1).model, snapshot.folder) == 1


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_damaged_weights_are_refused_by_name_and_nothing_is_loaded(tmp_path, share):
    policy, other = random_policy(seed=1), random_policy(seed=2)
    before = {name: t.clone() for name, t in other.model.state_dict().items()}
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    path = snapshot.folder / WEIGHTS
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(SnapshotError, match=WEIGHTS):
        load_into(other.model, snapshot.folder)
    assert all(torch.equal(t, before[name]) for name, t in other.model.state_dict().items())


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        (random_policy, "lm_head.weight is missing"),
        (lambda: random_policy(hidden=32), "model.embed_tokens.weight does not fit"),
    ],
)
def test_another_models_weights_are_refused_by_name(tmp_path, written, wrong):
    snapshot = Snapshot(written(), as_checkpoint=False, place=tmp_path)
    with pytest.raises(SnapshotError, match=wrong):
        load_into(untied_policy().model, snapshot.folder)


def test_what_a_reader_makes_of_the_weights_is_not_called_damage(tmp_path):
    snapshot = Snapshot(random_policy(), as_checkpoint=False, place=tmp_path)
    with pytest.raises(KeyError, match="no such layer"), opened(snapshot.folder):
        raise KeyError("no such layer")
    snapshot.remove()


def test_weights_that_cannot_be_written_leave_the_earlier_ones_and_say_where(tmp_path):
    policy = random_policy()
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    policy.version = 1
    snapshot.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match=WEIGHTS):
        snapshot.write(policy)
    assert load_into(policy.model, tmp_path / "elsewhere") == 0


def test_folders_of_owners_that_are_gone_are_removed_and_those_of_living_ones_stay(
    tmp_path, monkeypatch
):
    living = Snapshot(random_policy(), as_checkpoint=False, place=tmp_path)
    abandoned = tmp_path / f"{snapshots.PREFIX}abandoned"
    young = tmp_path / f"{snapshots.PREFIX}young"
    for folder in (abandoned, young):
        folder.mkdir()
        (folder / WEIGHTS).write_bytes(b"x")
    for folder in (living.folder, abandoned):
        os.utime(folder, (0, 0))
    another = Snapshot(random_policy(), as_checkpoint=False, place=tmp_path)
    assert set(tmp_path.iterdir()) == {living.folder, another.folder, young}


def test_without_room_in_shared_memory_the_temporary_folder_is_used_and_it_is_said(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(snapshots, "ROOM", 1 << 60)
    monkeypatch.setattr(snapshots.tempfile, "tempdir", str(tmp_path))
    snapshot = Snapshot(random_policy(), as_checkpoint=False)
    assert snapshot.folder.parent == tmp_path
    if snapshots.SHARED_MEMORY.is_dir():
        assert "MiB free" in caplog.text
    snapshot.remove()
    assert not snapshot.folder.exists()
