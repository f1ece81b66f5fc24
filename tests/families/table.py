"""docs/models.md, written from what was measured of every family."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.families.measure import PROMPTS, Measured
from tests.families.real import REAL

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
RECORD = Path(__file__).with_name("measured.json")
MOST_GAP = 1e-3
"""Nat, as where a model is refused."""
LEAST_MOVED = 0.01
"""Nat: below that, log-probs would hardly show that a model was read wrongly."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is known of a family.

    Attributes:
        measured: None where it was not built, or the library failed.
        refused: why the start of a node refuses it.
        untried: why it was not built.
    """

    measured: Measured | None = None
    refused: str = ""
    untried: str = ""

    @property
    def works(self) -> bool:
        """Whether engine, learner and ``transformers.generate`` agree on it."""
        told = self.measured
        return (
            told is not None
            and told.greedy == len(PROMPTS)
            and told.widest <= MOST_GAP
            and told.moved >= LEAST_MOVED
        )


def record(version: str, families: dict[str, Family]) -> None:
    """Write down what was measured with a version of ``transformers``."""
    rows = {name: asdict(family) for name, family in sorted(families.items())}
    RECORD.write_text(json.dumps({"transformers": version, "families": rows}, indent=1) + "\n")


def recorded() -> tuple[str, dict[str, Family]]:
    """The version of ``transformers`` that was measured with, and the families."""
    told: dict[str, Any] = json.loads(RECORD.read_text())
    return told["transformers"], {
        name: Family(**{**row, "measured": row["measured"] and Measured(**row["measured"])})
        for name, row in told["families"].items()
    }


def page() -> str:
    """The page."""
    version, families = recorded()
    works = {name: each for name, each in families.items() if each.works and not each.refused}
    refused = {name: each for name, each in families.items() if each.refused}
    untried = {name: each for name, each in families.items() if each.untried}
    return "\n".join(
        [
            HEAD.format(version=version, all=len(families), real=_listed()),
            f"## {len(works)} families work\n",
            "| `model_type` | one row | 4 prompts by 3 | by 16 | rows come and go | 3 turns |",
            "|---|---|---|---|---|---|",
            *(_measured(name, each.measured) for name, each in works.items() if each.measured),
            f"\n## {len(refused)} are refused\n",
            REFUSED,
            "| `model_type` | why |",
            "|---|---|",
            *(f"| {name} | {_cell(each.refused)} |" for name, each in refused.items()),
            f"\n## {len(untried)} were not tried\n",
            "A node tries them as it does any model.\n",
            "| `model_type` | why |",
            "|---|---|",
            *(f"| {name} | {_cell(each.untried)} |" for name, each in untried.items()),
            FOOT,
        ]
    )


def _listed() -> str:
    *names, last = REAL
    return textwrap.fill(f"{', '.join(names)} and {last}", 100)


def _measured(name: str, told: Measured) -> str:
    gaps = (told.alone, told.rows, told.many, told.joins, told.turns)
    return f"| {name} | {' | '.join(f'{gap:.0e}' for gap in gaps)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


HEAD = """# Models

Any causal language model of `transformers` that passes the [trial at the
start](engines.md#a-trial-at-the-start) can be trained. This page is written by
`python -m tests.families`, which builds a small random model of each of the {all} architectures
that `transformers` {version} takes for causal ones, with two layers of every kind that a family
mixes, in float32, and holds the `transformers` engine against two others:

- the greedy completions of four prompts are those of `transformers.generate`, token by token;
- the log-probs of sampled tokens are the learner's: of one row alone, of four prompts of 3 to 30
  tokens with three and with sixteen completions each, of rows that join and leave while the weights
  change, and of trajectories that go on for three turns behind what an environment would answer.
  The tables give the widest gap, in nat a token.

Windows of attention are 12 tokens there, so that texts go past them. Families that can be encoders
too are built as decoders, and of those that read pictures the text alone is read.

{real}
go the whole way in the tests, each with its kind of tokenizer and chat template: prompt, sampling,
three updates of all weights or of an adapter with the engine held against the learner after each,
back from a checkpoint, export, and groups of another family to learn from. Adapters of mixtures of
experts need `policy.lora_targets`, such as `["q_proj", "k_proj", "v_proj", "o_proj"]`.

Where a chat template has a switch for thinking, `policy.chat_template_kwargs` sets it, as with
`--set policy.chat_template_kwargs.enable_thinking=false`; an option that the template does not read
is refused. A model without a template is given its prompts as plain text, and says so.
"""
REFUSED = """What the start says of them, before anything is trained. With `engine.kind = "vllm"`
the engine reads those that vLLM knows.
"""
FOOT = """
---

[Engines](engines.md) · [configuration](configuration.md) · [README](../README.md)
"""
