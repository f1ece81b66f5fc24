"""Measured differences of engine and learner per family, and docs/models.md."""

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.engines.engine import Request, Sample, Sampling, SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.learner.batches import Row, TrainingCompletion, micro_batches
from node.learner.logprobs import distributions, token_logprobs
from node.policy.policy import Policy
from tests.families.real import REAL
from tests.families.small import small_policy
from tests.node.engines.test_transformers_backend import Writing
from tests.support import generated

PROMPTS = [(5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8), (9,) * 30, (5, 6, 8)]
ADDED = 20
CAPS = [4, 25, 12, 30]
TURNS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one family.

    Attributes:
        greedy: Number of the four prompts with the greedy completion of ``transformers.generate``.
        alone, rows, many, joins, turns: Maximum difference (nat) of a sampled token's log-prob from
            the learner's: one row; four prompts of three rows, and of sixteen; rows that join and
            leave while weights change; three turns of four trajectories with observations.
        moved: Mean change (nat) of later log-probs if the first token of a prompt changes.
    """

    greedy: int
    alone: float
    rows: float
    many: float
    joins: float
    turns: float
    moved: float

    @property
    def gaps(self) -> tuple[float, ...]:
        return self.alone, self.rows, self.many, self.joins, self.turns


def measured(family: str, folder: Path) -> Measured:
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
    """Return the learner's log-probs of a completion, float32 ``[tokens]``."""
    completion = TrainingCompletion(tuple(ids), (True,) * len(ids))
    row = Row(tuple(prompt), (completion,), (0.0,), True)
    (batch,) = micro_batches([row], 4096, policy.pad_id, policy.device)
    return token_logprobs(distributions(policy.model, batch, 1.0), batch)[0]


def _greedy(policy: Policy, prompt: Sequence[int]) -> bool:
    wanted = Sampling(max_new_tokens=ADDED, greedy=True)
    ((sample,),) = TransformersEngine(policy, seed=0).generate([prompt], 1, wanted)
    expected = generated(policy, prompt, ADDED)
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
        # Different lengths, so that rows pause after different numbers of tokens.
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


def _gap(policy: Policy, prompt: Sequence, ids: Sequence, told: Tensor, chosen: Any = ...) -> float:
    widest = float((learned(policy, prompt, ids) - told).abs()[chosen].max())
    return widest if widest == widest else float("inf")


def _moved(policy: Policy) -> float:
    ids = tuple(range(40, 60))
    with_one, with_other = (learned(policy, (n, 11, 12, 13), ids) for n in (20, 30))
    return float((with_one - with_other).abs().mean())


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
RECORD = Path(__file__).with_name("measured.json")
MOST_GAP = 1e-3
"""Nat; a node refuses a model above this difference."""
LEAST_MOVED = 0.01
"""Nat; with less, log-probs would hardly show a wrong forward pass."""


@dataclass(frozen=True, slots=True)
class Family:
    """Result of a family.

    Attributes:
        measured: None if it was not built, or if the library failed.
        refused: Reason why a node refuses it at the start.
        untried: Reason why it was not built.
    """

    measured: Measured | None = None
    refused: str = ""
    untried: str = ""

    @property
    def works(self) -> bool:
        told = self.measured
        right = told is not None and told.greedy == len(PROMPTS)
        return right and max(told.gaps) <= MOST_GAP and told.moved >= LEAST_MOVED


def record(version: str, families: dict[str, Family]) -> None:
    rows = {name: asdict(family) for name, family in sorted(families.items())}
    RECORD.write_text(json.dumps({"transformers": version, "families": rows}, indent=1) + "\n")


def recorded() -> tuple[str, dict[str, Family]]:
    told: dict[str, Any] = json.loads(RECORD.read_text())
    return told["transformers"], {
        name: Family(**{**row, "measured": row["measured"] and Measured(**row["measured"])})
        for name, row in told["families"].items()
    }


def page() -> str:
    version, families = recorded()
    *names, last = REAL
    real = textwrap.fill(f"{', '.join(names)} and {last}", 100)
    works = {
        name: max(each.measured.gaps)
        for name, each in families.items()
        if each.measured and each.works and not each.refused
    }
    refused = {name: each.refused for name, each in families.items() if each.refused}
    untried = {name: each.untried for name, each in families.items() if each.untried}
    widest = max(works, key=works.__getitem__)
    return "\n".join(
        [
            HEAD.format(version=version, all=len(families), real=real),
            f"## {len(works)} families work\n",
            WORKS.format(gap=works[widest], name=widest),
            *_table("", "`model_type`", {name: name[0] for name in works}),
            f"\n## {len(refused)} families are refused\n",
            REFUSED,
            *_table("reason", "`model_type`", refused),
            f"\n## {len(untried)} families are untested\n",
            "A node checks them like any other model.\n",
            *_table("reason", "`model_type`", untried),
            FOOT,
        ]
    )


def _table(left: str, right: str, families: dict[str, str]) -> Iterator[str]:
    """Yield a row per key without its error message, with the families that have it."""
    rows = defaultdict[str, list[str]](list)
    for name, key in families.items():
        key = GAP.sub(r"from the learner by more than \1 nat per token", key)
        rows[ERROR.sub(r"\1", key)].append(name)
    yield f"| {left} | {right} |"
    yield "|---|---|"
    for key, names in rows.items():
        yield f"| {key} | {', '.join(names)} |"


GAP = re.compile(r"by \S+ nats per token from the learner, more than (\S+)")
ERROR = re.compile(r"(fails|a small model cannot be built)\b.*")
HEAD = """# Models

This page lists the model families of `transformers` that a node can train, for users who choose a
model. You can train any causal language model that passes the [engine parity
check](engines.md#engine-parity-check). [`swarm-node plan`](hardware.md) shows if a model fits your
machine.

## Settings

- **LoRA with mixtures of experts** needs `policy.lora_targets`, such as
  `["q_proj", "k_proj", "v_proj", "o_proj"]`.
- **Thinking** and other options of a chat template: `policy.chat_template_kwargs`, as in
  `--set policy.chat_template_kwargs.enable_thinking=false`. A model without a template gets prompts
  as plain text.
- **End of a completion.** Sampling stops at the token that ends an assistant turn in the template,
  at the tokenizer's `eos_token`, and at the end tokens of the generation config.

Rewards were measured for one pretrained model:
[SmolLM2-135M-Instruct](starter.md#results-of-a-small-model).

## Tests

`python -m tests.families` builds a small float32 model with random weights of each of the {all}
causal architectures of `transformers` {version}, and writes this page. A family works if:

- the greedy completions of four prompts equal those of `transformers.generate`
- the log-probs of sampled tokens differ from the learner's by at most 0.001 nat, while rows join
  and leave a batch, weights change, and trajectories have three turns

Multimodal families are tested with text only, encoders as decoders.

{real}
are also tested in a whole node: sampling, updates, a checkpoint and the export.
"""
WORKS = """The largest difference from the learner is {gap:.0e} nat per token ({name}).
`tests/families/measured.json` has the figures and errors of each family.
"""
REFUSED = """The node prints the reason and stops before it trains. `engine.backend = "vllm"`
supports the models of vLLM. "Fails" means an error in `transformers`.
"""
FOOT = """
---

[Engines](engines.md) · [configuration](configuration.md) · [README](../README.md)
"""
