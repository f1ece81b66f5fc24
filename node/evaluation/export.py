"""The model card of an exported model, and its upload to the Hugging Face hub.

Metadata as in https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import (
    HfApi,
    ModelCard,
    ModelCardData,
    constants,
    get_token,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from node.config.config import Config
from node.config.sections import TasksSection
from node.errors import NodeError, UsageError
from node.learner.supervised import WarmStarted
from node.monitor.history import read_history
from node.monitor.record import RoundRecord, share
from node.network.pinned_manifest import checked_manifest
from node.policy.model_files import ADAPTER
from node.policy.model_source import SHIPPED
from node.storage.atomic_files import filling, let_others_read, write_atomic
from node.storage.checkpoints import Checkpoints, Loaded
from node.storage.run_folder import RunFolder
from protocol.manifest import EnvSpec, Manifest, swarm_id

log = logging.getLogger(__name__)

SHIPPED_LICENCE = "apache-2.0"


@dataclass(frozen=True, slots=True)
class Training:
    """A policy's training until its export."""

    rounds: int
    policy_steps: int | None
    tokens: float  # completion tokens trained on; an estimate unless ``exact``
    external: float | None  # fraction of update groups from peers, 0 to 1; None without groups
    exact: bool  # whether the records of all rounds are present

    @property
    def trained(self) -> bool:
        """Whether an optimizer step was done; without a count, whether a round was."""
        return bool(self.rounds if self.policy_steps is None else self.policy_steps)

    @classmethod
    def of(cls, history: Sequence[RoundRecord], rounds: int, policy_steps: int | None) -> Training:
        """Sum records up to a round; a kept record stands for omitted ones before it."""
        records = [record for record in history if record.round <= rounds]
        rounds_before = (0, *(record.round for record in records))
        gaps = [r.round - previous for previous, r in zip(rounds_before, records, strict=False)]
        weighted = list(zip(gaps, records, strict=True))
        external = sum(gap * record.groups_external for gap, record in weighted)
        groups = external + sum(gap * record.groups_local for gap, record in weighted)
        return cls(
            rounds=rounds,
            policy_steps=policy_steps,
            tokens=sum(gap * record.tokens_trained for gap, record in weighted),
            external=external / groups if groups else None,
            exact=max(gaps, default=1) == 1 and sum(gaps) == rounds,
        )


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """A policy's swarm, if any, and its mean held-out reward, 0 to 1, if measured."""

    signed: bytes | None
    manifest: Manifest | None
    heldout: float | None


def model_card(
    config: Config, training: Training, origin: ModelOrigin, *, adapter: bool = False
) -> str:
    """Return the card in Markdown; ``adapter``: of the adapter alone."""
    warm_start = WarmStarted.read(config.policy.model)
    base = warm_start.base if warm_start else config.policy.model
    warm_adapter = adapter and warm_start is not None  # its weights do not fit the public base
    hub_id = None if warm_adapter or base in SHIPPED or _is_folder(base) else base
    licence = licence_of(base)
    data = ModelCardData(
        base_model=hub_id,
        license=licence,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "swarm-node"],
    )
    name = _code(Path(base).name) if warm_start else Path(base).name
    parts = (
        f"---\n{data.to_yaml()}\n---\n",
        f"# {name}, {'' if training.trained else 'not '}trained in a swarm\n",
        _summary(training, warm_start),
        _table(base, training, origin, warm_start),
        _tasks(config.tasks, origin, base, adapter),
        _use(adapter, warm_adapter, hub_id or "BASE", config.policy.dtype),
        "## License\n",
        f"That of the base model: {_code(licence)}.\n"
        if licence
        else "That of the base model, which does not state it: look it up before sharing.\n",
    )
    return "\n".join(parts)


def _is_folder(base: str) -> bool:
    """Return whether a model is a folder, here or on the machine that its record is of."""
    path = Path(base).expanduser()
    return path.is_absolute() or path.exists()


def licence_of(base: str) -> str | None:
    """Return the license in a model's own local card, None if unknown."""
    if base in SHIPPED:
        return SHIPPED_LICENCE
    if _is_folder(base):
        card = Path(base).expanduser() / constants.REPOCARD_NAME
    else:
        path = try_to_load_from_cache(base, constants.REPOCARD_NAME)
        if not isinstance(path, str):
            return None
        card = Path(path)
    if not card.is_file():
        return None
    try:
        licence = ModelCard.load(card, ignore_metadata_errors=True).data.license
    except Exception as error:  # noqa: BLE001 - its YAML may hold anything
        log.warning("the card of the base model cannot be read: %s: %s", card, error)
        return None
    return licence if isinstance(licence, str) else None


def _summary(training: Training, warm_start: WarmStarted | None) -> str:
    if not training.trained and warm_start:
        return (
            "Not trained with reinforcement learning: no optimizer step was done after the warm "
            "start,\nsupervised steps on examples of the swarm's own tasks.\n"
        )
    if not training.trained:
        return "Not trained: there was no optimizer step. It answers like its base model.\n"
    text = "Post-trained with reinforcement learning on verifiable tasks by swarm-node"
    if warm_start:
        text += ",\nafter a warm start: supervised steps on examples of the swarm's own tasks"
    if training.external is None:
        return f"{text}.\n"
    suffix = " and from those that peers shared" if training.external else " alone"
    return f"{text},\nfrom its own rollouts{suffix}.\n"


def _table(base: str, training: Training, origin: ModelOrigin, started: WarmStarted | None) -> str:
    approx = "" if training.exact else "about "
    label = f"{_code(Path(base).name)}, a local folder that is not part of this model"
    rows = [
        ("base model", label if _is_folder(base) else _code(base)),
        ("rounds", f"{training.rounds:,}"),
        ("completion tokens trained on", f"{approx}{training.tokens:,.0f}"),
    ]
    if started:
        warm = (
            f"{started.steps:,} steps, {started.examples:,} examples of "
            f"{', '.join(map(_code, started.families))}; success on held-out tasks "
            f"{started.success_before:.0%} → {started.success_after:.0%}"
        )
        rows.insert(1, ("warm start", warm))
    if training.policy_steps is not None:
        rows.insert(-1, ("optimizer steps", f"{training.policy_steps:,}"))
    if training.external is not None:
        rows.append(("groups written by peers", f"{approx}{training.external:.0%}"))
    if origin.signed is not None and origin.manifest is not None:
        rows.append(("swarm", f"{_code(origin.manifest.name)} {swarm_id(origin.signed).hex()}"))
    if origin.heldout is not None:
        rows.append(("mean reward on held-out tasks", share(origin.heldout)))
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines) + "\n"


def _tasks(section: TasksSection, origin: ModelOrigin, base: str, adapter: bool) -> str:
    if origin.manifest is None:
        return ""
    if adapter:
        return (
            "## Evaluation\n\nswarm-node evaluates the whole model, exported without `--adapter`.\n"
        )
    families = ", ".join(_selected(section, origin.manifest.catalogue))
    model = "BASE" if _is_folder(base) else shlex.quote(" ".join(base.split()).replace("`", ""))
    note = "BASE is the folder of the base model. " if _is_folder(base) else ""
    return (
        f"## Evaluation\n\nOn held-out questions of {families}:\n\n```sh\nswarm-node eval --model "
        ". --config NODE --tasks 256 --samples 8\n```\n\nNODE is the folder of a node of that "
        "swarm; its `tasks.weights` and `tasks.levels` select the questions.\nTo compare the model "
        f"with its base:\n\n```sh\nswarm-node compare {model} . --config NODE --tasks 256\n```\n\n"
        f"{note}`.` is the folder of this model.\n"
    )


def _selected(section: TasksSection, catalogue: Sequence[EnvSpec]) -> Iterator[str]:
    """Yield the families that ``[tasks]`` selects, with their levels if it selects fewer."""
    for env in catalogue:
        span = range(len(env.levels))
        levels = [n for n in span if n in section.levels.get(env.name, span)]
        if levels and (not section.weights or section.weights.get(env.name)):
            word = "level" if len(levels) == 1 else "levels"
            suffix = f" ({word} {', '.join(map(str, levels))})" if len(levels) < len(span) else ""
            yield f"{_code(env.name)}{suffix}"


def _use(adapter: bool, warm_adapter: bool, base: str, dtype: str) -> str:
    dtype_arg = "" if dtype == "auto" else f', dtype="{dtype}"'
    if warm_adapter:
        return (
            "## Use\n\nThe adapter belongs to the warm-started model, not to its base: share the "
            "whole model, exported\nwithout `--adapter`.\n"
        )
    if adapter:
        return (
            "## Use\n\n```python\nfrom peft import PeftModel\n"
            "from transformers import AutoModelForCausalLM\n\n"
            f"base = AutoModelForCausalLM.from_pretrained({base!r}{dtype_arg})\n"
            'model = PeftModel.from_pretrained(base, ".")\n```\n'
            + ("\nBASE is the folder of the base model.\n" if base == "BASE" else "")
        )
    return (
        "## Use\n\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("."{dtype_arg})\n'
        'tokenizer = AutoTokenizer.from_pretrained(".")\n```\n\n'
        "`vllm serve .` serves it. Ollama and llama.cpp need GGUF: convert this folder with\n"
        "llama.cpp's `convert_hf_to_gguf.py`, if it supports the architecture.\n"
    )


def _code(text: str) -> str:
    """Quote a swarm creator's or a model's text, so that it is not markup."""
    plain = " ".join(text.split()).replace("`", "'").replace("|", "/")
    return f"`{plain}`"


def write_card(
    config: Config, folder: RunFolder, loaded: Loaded, out: Path, *, adapter: bool = False
) -> None:
    """Write a checkpoint's model card into ``out``, or raise NodeError and empty ``out``."""
    with filling(out):
        history, steps = read_history(folder.root), loaded.state["policy_step"]
        training = Training.of(history, loaded.step, steps)
        origin = ModelOrigin(None, None, None)
        if folder.manifest.exists():
            signed = folder.manifest.read_bytes()
            rating = Checkpoints(loaded.path.parent).rewards.read().get(loaded.step)
            heldout = rating[1] if rating and rating[0] == swarm_id(signed).hex() else None
            origin = ModelOrigin(signed, checked_manifest(signed, str(folder.manifest)), heldout)
        card = model_card(config, training, origin, adapter=adapter)
        write_atomic(out / constants.REPOCARD_NAME, card.encode())
        if adapter:  # peft writes the folder that the base was loaded from
            settings, model = json.loads((out / ADAPTER).read_bytes()), config.policy.model
            settings["base_model_name_or_path"] = Path(model).name if _is_folder(model) else model
            write_atomic(out / ADAPTER, json.dumps(settings, indent=2).encode())
        let_others_read(out)


def check_pushable(repo: str) -> None:
    """Check offline that a model could be pushed to ``repo``; raises ``UsageError``."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError("--push", repo, "Write it as user/my-model.") from error
    if constants.HF_HUB_OFFLINE:
        raise UsageError("--push", repo, "HF_HUB_OFFLINE is set: unset it.")
    if get_token() is None:
        raise UsageError("--push", repo, "Log in to the hub first: hf auth login.")


def push(folder: Path, repo: str) -> str:
    """Upload an exported model, to a new private repository if needed; return its URL.

    Raises ``NodeError`` if the hub refuses or cannot be reached; the folder stays.
    """
    api = HfApi()
    try:
        url = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message="Add a model")
    except (HTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = f"Try again with: hf upload {repo} {folder}"
        raise NodeError(f"{folder} was written but not pushed to {repo}", reason, remedy) from error
    return str(url)
