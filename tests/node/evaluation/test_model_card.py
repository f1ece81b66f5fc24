"""What an exported model says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from node.config.config import Config
from node.evaluation.export import ModelOrigin, Training, licence_of, model_card
from node.monitor.record import RoundRecord
from node.network.founding import found_swarm
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id

NOTHING = ModelOrigin(None, None, None)


def rounds(*numbers: int, own: int = 3, external: int = 1) -> list[RoundRecord]:
    return [
        RoundRecord(
            round=number,
            policy_step=number,
            time=0.0,
            reward_own=0.5,
            groups_own=own,
            groups_external=external,
            tokens_trained=100,
        )
        for number in numbers
    ]


def test_training_is_counted_up_to_the_exported_round() -> None:
    training = Training.of(rounds(1, 2, 3, 4), 3, 2)
    assert training == Training(3, 2, 300, 0.25, exact=True)


def test_rounds_that_were_thinned_are_stood_for_by_the_next_that_is_kept() -> None:
    training = Training.of(rounds(1, 4, 6, 7), 7, None)
    assert (training.tokens, training.external, training.exact) == (700, 0.25, False)


def test_a_run_without_records_claims_nothing() -> None:
    training = Training.of([], 5, 5)
    assert (training.tokens, training.external, training.exact) == (0, None, False)


def test_the_card_names_the_swarm_what_it_learned_from_and_what_it_is_worth() -> None:
    signed = found_swarm(Identity.from_seed(bytes(32)), name="a `name` | [x](y)")
    origin = ModelOrigin(signed, open_manifest(signed), 0.4567)
    card = model_card(Config(), Training.of(rounds(1, 2), 2, 2), origin)
    data = ModelCard(card).data
    assert (data.license, data.library_name) == ("apache-2.0", "transformers")
    assert data.base_model is None, "a shipped model has no address at a hub"
    assert f"| swarm | `a 'name' / [x](y)` {swarm_id(signed).hex()} |" in card
    assert "| completion tokens trained on | 200 |" in card
    assert "| groups written by peers | 25% |" in card
    assert "| mean reward on held-out tasks | 0.457 |" in card
    assert "`chain_sum`" in card and "vllm serve" in card and "convert_hf_to_gguf.py" in card


def test_a_public_base_is_linked_and_a_folder_of_this_machine_is_not_told(tmp_path: Path) -> None:
    public = Config.with_overrides({"policy.model": "Qwen/Qwen2.5-0.5B-Instruct"})
    card = model_card(public, Training.of([], 0, None), NOTHING, adapter=True)
    data = ModelCard(card).data
    assert (data.base_model, data.library_name) == ("Qwen/Qwen2.5-0.5B-Instruct", "peft")
    assert "AutoPeftModelForCausalLM" in card and "look it up before sharing" in card

    folder = tmp_path / "secret place" / "mine"
    folder.mkdir(parents=True)
    private = Config.with_overrides({"policy.model": str(folder)})
    card = model_card(private, Training.of([], 0, None), NOTHING)
    assert "`mine`" in card and "secret place" not in card
    assert ModelCard(card).data.base_model is None


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n# m\n", "mit"),
        ("---\ntags: [x]\n---\n", None),
        ("# no metadata\n", None),
        ("---\nlicense: [a, b]\n---\n", None),
    ],
)
def test_the_licence_is_that_of_the_bases_own_card(
    tmp_path: Path, card: str, licence: str | None
) -> None:
    (tmp_path / "README.md").write_text(card)
    assert licence_of(str(tmp_path)) == licence


def test_without_a_card_there_is_no_word_of_a_licence(tmp_path: Path) -> None:
    assert licence_of(str(tmp_path)) is None
    assert licence_of("nobody/has-this") is None
