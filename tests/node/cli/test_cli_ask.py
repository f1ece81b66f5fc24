"""Putting a question to the policy, and two models side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.network.founding import found_swarm
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.node.conftest import Terminal
from tests.support import saved_policy

AT = ("--config", "node")


@pytest.fixture
def trained(node: RunFolder) -> RunFolder:
    """A node of the tiny tasks with one checkpoint."""
    node.manifest.write_bytes(found_swarm(Identity.load(node.identity), name="sums"))
    Checkpoints(node.checkpoints, keep=3).save(10, saved_policy, {"round": 10, "policy_step": 7})
    return node


def test_a_drawn_question_is_answered_and_scored_the_same_each_time(terminal, trained):
    told = terminal.json("ask", *AT, "--family", "gcd")
    assert told["family"] == "gcd" and told["prompt"].endswith("Answer:")
    (answer,) = told["answers"]
    assert 0.0 <= answer["reward"] <= 1.0 and answer["unscored"] is None
    assert "step-00000010" in answer["model"]
    asked = ("ask", told["prompt"], *AT, "--family", "gcd")
    first, again = (terminal.json(*asked)["answers"] for _ in range(2))
    assert first == again


def test_a_typed_question_of_a_family_is_recognised_and_another_is_not(terminal, trained):
    drawn = terminal.json("ask", *AT, "--family", "leg_counting")
    question = drawn["prompt"].removesuffix("\nAnswer:")
    typed = terminal.json("ask", f"  {question} ", *AT)
    assert (typed["prompt"], typed["family"]) == (drawn["prompt"], "leg_counting")
    assert typed["answers"][0]["reward"] is not None

    assert terminal("ask", "Who are you?", *AT, "--family", "gcd") == 0
    assert "no reward: no family of this swarm is known to ask this" in terminal.out
    assert terminal.out.startswith("question:\n  Who are you?\n")


def test_the_base_answers_beside_the_policy(terminal: Terminal, trained: RunFolder) -> None:
    told = terminal.json("ask", *AT, "--base", "--temperature", "0.7")
    assert [Path(answer["model"]).name for answer in told["answers"]] == ["step-00000010", "tiny"]
    assert "\nstep-00000010:\n" in terminal.ok("ask", *AT, "--base") and "\ntiny:\n" in terminal.out
    assert terminal.out.count("reward ") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--family", "sums"), "This swarm has: chain_sum"),
        ((" ",), "Type one"),
        (("why " * 3000,), "Ask a shorter one"),
        (("--step", "3"), "there are: 7"),
        (("--best", "--step", "7"), "Leave all but one out"),
    ],
)
def test_what_cannot_be_asked_is_told(terminal, trained, arguments, said):
    assert said in terminal.fails(2, "ask", *arguments, *AT)


def test_a_node_is_compared_with_a_model_alike_each_time(terminal, trained):
    asked = ("compare", "node", "tiny", "--tasks", "20", "--samples", "2")
    first, again = (terminal.json(*asked) for _ in range(2))
    assert first == again
    assert first["tasks"] == 20 == sum(part["tasks"] for part in first["families"].values())
    assert first["gain"] == pytest.approx(first["reward_second"] - first["reward_first"])
    gaps = [abs(row["second"] - row["first"]) for row in first["disputed"]]
    assert gaps == sorted(gaps, reverse=True)
    assert all(row["prompt"] for row in first["disputed"])

    assert terminal(*asked, "--show", "2") == 0
    assert f"they differ on {len(gaps)} tasks" in terminal.out if gaps else "differ" in terminal.out
    assert "B − A" in terminal.out


def test_a_model_is_no_better_than_itself(terminal, trained):
    asked = ("compare", "tiny", "tiny", "--tasks", "16", "--samples", "1", *AT)
    told = terminal.json(*asked)
    assert (told["gain"], told["margin"], told["disputed"]) == (0.0, 0.0, [])
    assert "no difference beyond noise" in terminal.ok(*asked)


def test_what_cannot_be_compared_is_told(terminal, trained):
    assert terminal("compare", "node", "no-such-model/at-all") in (1, 2)
    assert "no-such-model/at-all" in terminal.err
    Path("empty").mkdir()
    assert "config.json" in terminal.fails(2, "compare", "tiny", "empty", *AT)
    trained.manifest.unlink()
    assert "swarm-node join" in terminal.fails(1, "compare", "node", "tiny")
