"""Program of test_ranks.py under ``torchrun``: updates on two ranks and on one.

Rank 0 writes its results to the given folder.
"""

import copy
import logging
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from node.distributed.ranks import Ranks
from node.distributed.sharded_learner import follow, open_learner
from node.distributed.torchrun import Launch
from node.errors import NodeError
from node.learner import logprobs
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.logprobs import VocabularyHead
from node.policy.policy import Policy
from tests.node.learner import parts as learning
from tests.node.learner.parts import CONFIG, HONEST, HOT, MIXED, behaving, dated, group, weights
from tests.support import changed, figures, random_policy

FULL = "memory is full"
RECOMPUTED = {"gradient_checkpointing": True}
WHOLE, PART = 4 * 98 * 60, 7
"""Bytes of whole logits, and positions per part: some micro-batches use parts."""
STALE = dated(behaving(MIXED, 0.1), 0) + dated(behaving([group(7, (0.0, 1.0))], -0.3), -1)


def sharing_prompts() -> list[TrainingGroup]:
    """Build groups whose completions share their long prompt."""
    draw, groups = random.Random(0), []
    for number in range(3):
        prompt, *lines = (
            tuple(draw.randrange(95) for _ in range(length)) for length in (60 + number, *[5] * 4)
        )
        done = tuple(TrainingCompletion(ids, (True,) * 5, (-1.0,) * 5) for ids in lines)
        groups.append(TrainingGroup(prompt, done, (0.0, 1.0, 0.0, 0.5), local=number > 0))
    return groups


def one_row() -> list[TrainingGroup]:
    """Build a group with a single trained completion, and an uninformative group."""
    each = group(4, (1.0, 0.0))
    first, second = each.completions
    masked = replace(second, trained=(False,) * len(second.ids))
    return [replace(each, completions=(first, masked)), group(5, (1.0, 1.0))]


@dataclass(frozen=True, slots=True)
class Case:
    """Settings and updates of one learner."""

    groups: list[TrainingGroup]
    config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    policy: Callable[[], Policy] = random_policy
    updates: int = 2
    newest: list[TrainingGroup] = field(default_factory=list)


def odd_policy() -> Policy:
    """Build a policy whose embeddings cannot be halved, with an untied head."""
    policy = random_policy()
    policy.model.config.tie_word_embeddings = False
    policy.model.resize_token_embeddings(99)
    policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.detach() * 0.5)
    return policy


CASES = {
    "one pass": Case(MIXED),
    "clipped": Case(MIXED, {"max_grad_norm": 0.1, "lr": 3e-3}),
    "epochs in small pieces": Case(
        behaving(MIXED, 0.5), {"epochs": 3, "micro_batch_tokens": 24, "lr": 3e-3}
    ),
    "prompts shared": Case(sharing_prompts(), {"epochs": 2}, {"correction": "tapered"}),
    "a step for each group, better answers alone": Case(
        [*MIXED, *sharing_prompts()], {"groups_per_step": 1, "epochs": 2}, {"correction": "better"}
    ),
    "one group": Case(sharing_prompts()[:1], {"epochs": 2}),
    "fewer rows than ranks": Case(one_row(), {"epochs": 2}),
    "bfloat16": Case(MIXED, {"epochs": 2}, policy=lambda: random_policy(dtype=torch.bfloat16)),
    "stale, recomputed": Case(
        STALE,
        {"epochs": 2, "loss": "gspo", "proximal_policy": "versions"} | RECOMPUTED,
        {"decoupled": True, "temperature": 0.7},
    ),
    "odd and untied": Case(MIXED, {"loss": "dr_grpo"}, policy=odd_policy),
    "an engine compared beside": Case(
        dated(MIXED, 1),
        policy=lambda: learning.policy_at(3),
        newest=dated(behaving([group(7, (0.0, 0.0))], 0.2), 3),
    ),
    "peers' groups": Case(HONEST, {"groups_per_step": 0}, {"correction": "tapered"}),
    "some of them bounded, epochs": Case(
        [*HONEST, *(replace(HOT, prompt_ids=(number,)) for number in range(3))],
        # At a rate of 1e-2, a ratio is at the clip bound, and the processor's rounding decides.
        {"groups_per_step": 0, "epochs": 2, "micro_batch_tokens": 400, "lr": 2e-3},
    ),
    "refused": Case(MIXED, policy=lambda: learning.spoil(random_policy()), updates=1),
    "no signal": Case([group(5, (1.0, 1.0))], updates=1),
}


def learner_of(case: Case, policy: Policy, ranks: Ranks | None) -> Learner:
    return open_learner(policy, changed(CONFIG, **case.config), ranks, **case.settings)


def both_ways(case: Case, ranks: Ranks) -> dict[str, Any]:
    """Return stats, versions, weights and groups per pass, alone and over ranks."""
    results: dict[str, Any] = {"start": weights(case.policy())}
    for name, helpers in (("alone", None), ("ranks", ranks)):
        policy = case.policy()
        learner, passes = learner_of(case, policy, helpers), list[int]()

        def read(batch, done, backward=learner.backward, passes=passes):
            passes.append(len(set(batch.groups)))
            backward(batch, done)

        learner.backward = read
        updates = [learner.update(case.groups, lambda: case.newest) for _ in range(case.updates)]
        stats = [figures(update) for update in updates]
        results[name] = {"stats": stats, "version": policy.version, "weights": weights(policy)}
        results[name]["passes"] = passes
    return results


def through_a_checkpoint(
    case: Case, before: Ranks | None, after: Ranks | None, folder: Path
) -> dict[str, Any]:
    """Return the saved and the restored state, and the weights after another update.

    The restored learner's policy gets its weights after the learner is made.
    """
    policy, other = case.policy(), case.policy()
    learner = learner_of(case, policy, before)
    for _ in range(2):
        learner.update(case.groups)
    torch.save(learner.state_dict(), folder / "learner.pt")
    saved = torch.load(folder / "learner.pt", map_location="cpu", weights_only=True)
    restored = learner_of(case, other, after)
    other.model.load_state_dict(policy.model.state_dict())
    restored.load_state_dict(saved)
    results = {"restored": copy.deepcopy(restored.state_dict()), "version": other.version}
    restored.update(case.groups)
    return results | {"saved": saved, "weights": weights(other)}


def tokens_to_come(ranks: Ranks) -> tuple[str, int]:
    """Return the error for future tokens, and the version after another update."""
    policy, told = random_policy(), "nothing"
    learner = learner_of(CASES["one pass"], policy, ranks)
    try:
        learner.update(dated(MIXED, 1))
    except ValueError as error:
        learner.update(MIXED)
        told = str(error)
    return told, policy.version


def end_of_memory(ranks: Ranks, folder: Path) -> list[str]:
    """Return rank 0's errors, of an update and a save, if rank 1 runs out of memory."""
    learner = learner_of(CASES["one pass"], random_policy(), ranks)
    learner.update(MIXED)  # wait until rank 1 is ready
    (folder / FULL).touch()
    told = list[str]()
    for work in (lambda: learner.update(MIXED), learner.state_dict):
        try:
            work()
        except NodeError as error:
            told.append(str(error))
    return told


def lead(ranks: Ranks, folder: Path) -> None:
    parts: list[int] = []
    logits = VocabularyHead.logits

    def counted(self, hidden):
        parts.append(len(hidden))
        return logits(self, hidden)

    VocabularyHead.logits = counted
    results: dict[Any, Any] = {name: both_ways(case, ranks) for name, case in CASES.items()}
    for name in ("one pass", "bfloat16"):
        for before, after in ((None, None), (None, ranks), (ranks, None), (ranks, ranks)):
            ways = name, 1 if before is None else 2, 1 if after is None else 2
            results[ways] = through_a_checkpoint(CASES[name], before, after, folder)
    results["parts"] = parts
    results["tokens to come"] = tokens_to_come(ranks)
    # torchrun stops all ranks as soon as one has ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    results["end of memory"] = end_of_memory(ranks, folder)
    torch.save(results, folder / "found.pt")


def cramp(folder: Path) -> None:
    """Make attention run out of memory as soon as rank 0 creates the file."""
    forward = Qwen3Attention.forward

    def cramped(self, *args, **settings):
        if (folder / FULL).exists():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, *args, **settings)

    Qwen3Attention.forward = cramped


def main(folder: Path) -> None:
    logging.basicConfig()
    logprobs.WHOLE_BYTES, logprobs.CHUNK_BYTES = WHOLE, 0
    logprobs.LEAST_POSITIONS = PART
    launch = Launch.read()
    assert launch is not None
    with Ranks(launch) as ranks:
        assert Launch.read() is None
        if ranks.is_main:
            lead(ranks, folder)
        else:
            cramp(folder)
            follow(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
