"""What the embedded engine makes of a family, against the learner and ``transformers.generate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from node.engines.backend import Request
from node.engines.engine import Sample, Sampling, SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.learner.batches import Row, TrainingCompletion, micro_batches
from node.learner.logprobs import distributions, token_logprobs
from node.policy.policy import Policy
from tests.families.small import small_policy
from tests.node.engines.test_transformers_backend import Writing

PROMPTS = [(5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8), (9,) * 30, (5, 6, 8)]
ADDED = 20
CAPS = [4, 25, 12, 30]
TURNS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """One family.

    Attributes:
        greedy: prompts whose greedy completion is that of ``transformers.generate``, of four.
        alone, rows, many, joins, turns: widest gap (nat) between a sampled token's log-prob and the
            learner's: one row; four prompts of three rows, and of sixteen; rows that join and leave
            while weights change; three turns of four trajectories with something read in between.
        moved: how far (nat) the first token of a prompt moves log-probs behind it.
    """

    greedy: int
    alone: float
    rows: float
    many: float
    joins: float
    turns: float
    moved: float

    @property
    def widest(self) -> float:
        """Of all gaps."""
        return max(self.alone, self.rows, self.many, self.joins, self.turns)


def measured(family: str, folder: Path) -> Measured:
    """Measure a family's small random models in ``folder``."""
    policies = [small_policy(family, seed) for seed in (1, 2)]
    policies[1].version = 1
    policy = policies[0]
    return Measured(
        greedy=sum(_greedy(policy, prompt) for prompt in PROMPTS),
        alone=max(_sampled(policy, [prompt], 1) for prompt in PROMPTS),
        rows=_sampled(policy, PROMPTS, 3),
        many=_sampled(policy, PROMPTS, 16),
        joins=_joined(policies, folder),
        turns=_turned(policy),
        moved=_moved(policy),
    )


@torch.no_grad()
def learned(policy: Policy, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """The learner's log-probs of a completion, float32 ``[tokens]``."""
    completion = TrainingCompletion(tuple(ids), (True,) * len(ids))
    row = Row(tuple(prompt), (completion,), (0.0,), True)
    (batch,) = micro_batches([row], 4096, policy.pad_id, policy.device)
    return token_logprobs(distributions(policy.model, batch, 1.0), batch)[0]


def _greedy(policy: Policy, prompt: Sequence[int]) -> bool:
    ids = torch.tensor([prompt])
    output = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=ADDED
    )
    wanted = Sampling(max_new_tokens=ADDED, greedy=True)
    ((sample,),) = TransformersEngine(policy, seed=0).generate([prompt], 1, wanted)
    expected = tuple(output[0, len(prompt) :].tolist())
    return sample.tokens.ids[: len(expected)] == expected


def _sampled(policy: Policy, prompts: Sequence[Sequence[int]], count: int) -> float:
    engine = TransformersEngine(policy, seed=0)
    samples = engine.generate(prompts, count, Sampling(max_new_tokens=ADDED))
    return max(
        _gap(policy, prompt, sample.tokens.ids, torch.tensor(sample.tokens.logprobs))
        for prompt, group in zip(prompts, samples, strict=True)
        for sample in group
    )


def _joined(policies: Sequence[Policy], folder: Path) -> float:
    writing = Writing(folder, policies[0])
    for number, (prompt, cap) in enumerate(zip(PROMPTS, CAPS, strict=True)):
        writing.backend.submit([Request(number, prompt, cap, 1.0, False)])
        writing.steps(5)
    writing.update(policies[1])
    writing.steps()
    assert [len(writing.ids[number]) for number in range(len(CAPS))] == CAPS
    gaps = []
    for number, prompt in enumerate(PROMPTS):
        ids, told = writing.ids[number], torch.tensor(writing.logprobs[number])
        versions = torch.tensor(writing.versions[number])
        for policy in policies:
            chosen = versions == policy.version
            if chosen.any():
                gaps.append(_gap(policy, prompt, ids, told, chosen))
    return max(gaps)


def _turned(policy: Policy) -> float:
    engine = TransformersEngine(policy, seed=0)
    ids = {key: [*prompt] for key, prompt in enumerate(PROMPTS)}
    gaps = []
    for turn in range(TURNS):
        wanted = [SamplingRequest(key, tuple(each), lasts=True) for key, each in ids.items()]
        # Of different lengths, so that rows rest behind different ones.
        for each, cap in zip(wanted, CAPS, strict=True):
            engine.submit([each], Sampling(max_new_tokens=cap // 3))
        written: list[tuple[int, Sample]] = []
        while len(written) < len(ids):
            written += engine.poll(1.0)
        for key, sample in written:
            told = torch.tensor(sample.tokens.logprobs)
            gaps.append(_gap(policy, ids[key], sample.tokens.ids, told))
            ids[key] += [*sample.tokens.ids, *range(10 + key, 12 + key + turn)]
    return max(gaps)


def _gap(
    policy: Policy,
    prompt: Sequence[int],
    ids: Sequence[int],
    told: Tensor,
    chosen: Tensor | None = None,
) -> float:
    gaps = (learned(policy, prompt, ids) - told).abs()
    widest = float((gaps if chosen is None else gaps[chosen]).max())
    return widest if widest == widest else float("inf")


def _moved(policy: Policy) -> float:
    ids = tuple(range(40, 60))
    with_one, with_other = (learned(policy, (n, 11, 12, 13), ids) for n in (20, 30))
    return float((with_one - with_other).abs().mean())
