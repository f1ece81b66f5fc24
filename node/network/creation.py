"""Creation of a swarm: size limits for its groups, and a signed manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from node.config.schema import toml_value
from node.policy.model_source import SHIPPED
from node.tasks.sources.jsonl import read_pairs
from node.tasks.task import split_of
from node.tasks.task_set import Allowed, load_task_set, misnamed, own_files
from node.tasks.verifier.replay_trial import Trial, try_replays
from protocol.codec import MAX_COMPLETIONS, MAX_FRAME_BYTES
from protocol.errors import BadSchema, NotAdmitted
from protocol.identity import Identity, peer_id_of
from protocol.manifest import (
    AdmissionRule,
    Manifest,
    Open,
    check_author,
    open_manifest,
    sign_manifest,
)
from swarm.common.util import counted
from swarm.groups import Split

TOKEN_BYTES = 8
"""Frame bytes per token (id, log-prob, text). Measured on compressed groups of 8 x 512 tokens: 5.7
for prose, 4.7 for code, 9.5 for random letters, which do not compress."""
TEXT_BYTES = 16
"""Text bytes per token. Words take 4; a token that is a long run of blanks takes more."""
ANSWER_BYTES, FRAME_BYTES = 256, 1 << 12
"""Bytes of a completion and of a frame in addition to the tokens."""
STEP = 1 << 16  # bytes; bounds are multiples of it
MOST_TEXT_BYTES = 1 << 20  # the manifest's own limit of ``max_text_bytes``
FEWEST = 2  # completions in a group


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """Limits of a manifest; ``weight`` is the bytes of a frame with one such group."""

    weight: int
    max_frame_bytes: int
    max_text_bytes: int
    max_completions: int


def frame_weight(tokens: int, group_size: int) -> int:
    """Estimate the maximum bytes of a frame with one group; ``tokens`` per completion."""
    return FRAME_BYTES + group_size * (ANSWER_BYTES + TOKEN_BYTES * tokens)


def bounds_for(tokens: int, group_size: int) -> AnswerBounds:
    """Compute the limits for groups of completions; raise BadSchema if not allowed."""
    if not FEWEST <= group_size <= MAX_COMPLETIONS:
        allowed = f"a group has {FEWEST} to {MAX_COMPLETIONS} completions"
        raise BadSchema(f"group_size: {group_size}; {allowed}")
    if tokens < 1:
        raise BadSchema(f"answer_tokens: {tokens}; a completion has at least one")
    weight = frame_weight(tokens, group_size)
    if weight > MAX_FRAME_BYTES or TEXT_BYTES * tokens > MOST_TEXT_BYTES:
        budget = (MAX_FRAME_BYTES - FRAME_BYTES) // group_size - ANSWER_BYTES
        max_group = (MAX_FRAME_BYTES - FRAME_BYTES) // (ANSWER_BYTES + TOKEN_BYTES * tokens)
        raise BadSchema(
            f"answer_tokens: {group_size} completions of {tokens} tokens may have {weight} "
            f"bytes, and a frame holds {MAX_FRAME_BYTES}: use at most "
            f"{min(budget // TOKEN_BYTES, MOST_TEXT_BYTES // TEXT_BYTES)} tokens"
            + (f", or groups of {max_group}" if max_group >= FEWEST else "")
        )
    defaults = {f.name: f.default for f in fields(Manifest) if isinstance(f.default, int)}
    return AnswerBounds(
        weight,
        max(defaults["max_frame_bytes"], _rounded(weight)),
        max(defaults["max_text_bytes"], _rounded(TEXT_BYTES * tokens)),
        max(defaults["max_completions"], group_size),
    )


def caution(manifest: Manifest, tokens: int, group_size: int) -> str:
    """Return a warning if local groups may not fit this swarm's frames, else empty.

    ``tokens`` is ``engine.max_new_tokens``, or less if the policy's context is smaller.
    """
    weight = frame_weight(tokens, group_size)
    keys = f"engine.max_new_tokens = {tokens} and engine.group_size = {group_size}"
    remedy = "decrease them"
    with suppress(BadSchema):
        bounds_for(tokens, group_size)
        remedy += ", or train in a swarm created with: swarm-node create --answer-tokens "
        remedy += f"{tokens} --group-size {group_size}"
    if group_size > manifest.max_completions:
        limit = counted(manifest.max_completions, "completion")
        return f"{keys}: a group in this swarm has at most {limit} (max_completions): {remedy}"
    if weight > manifest.max_frame_bytes:
        return (
            f"{keys}: a group may have {weight} bytes, and this swarm's frames hold "
            f"{manifest.max_frame_bytes} (max_frame_bytes): larger groups are shared without "
            f"token ids and log-probs, or not at all: {remedy}"
        )
    if TEXT_BYTES * tokens > manifest.max_text_bytes:
        bound = manifest.max_text_bytes
        return (
            f"{keys}: this swarm accepts completions of at most {bound} bytes (max_text_bytes); "
            f"groups with a longer one are not shared: {remedy}"
        )
    return ""


def unlisted(rule: AdmissionRule, author: bytes) -> tuple[str, ...]:
    """Return a warning if an allow list excludes the node of ``author``."""
    try:
        check_author(rule, author)
    except NotAdmitted:
        return (
            f"this swarm's allow list does not have this node, {peer_id_of(author)}: the node "
            "learns from peers, but they refuse its groups; its creator can list the node in a "
            "new swarm",
        )
    return ()


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP


LEAST_EPOCHS = 10
MOST_EPOCHS = 1 << 20
LEAST_SECONDS = 300.0
"""Minimum time to admit a group; with short time slots ``LEAST_EPOCHS`` would pass too soon."""


def usual_task_set(model: str) -> str:
    """Return the task set of a new swarm whose creator has this ``policy.model``."""
    return "tiny" if model in SHIPPED else "starter"


def create_swarm(
    identity: Identity,
    *,
    name: str,
    task_set: str = "tiny",
    epoch_seconds: float = 60.0,
    admission: AdmissionRule | None = None,
    answers: AnswerBounds | None = None,
) -> bytes:
    """Return a signed manifest, ready to be pinned and handed to joiners.

    ``task_set`` is a shipped task set or a ``.toml`` path; ``epoch_seconds`` is a time slot, about
    a slow node's round; without ``admission`` all peers may join. Raises TaskSetError if the task
    set cannot be read, and BadSchema, which names the value, if one is out of its range.
    """
    bounds = {} if answers is None else asdict(answers)
    bounds.pop("weight", None)
    epochs = LEAST_EPOCHS
    if epoch_seconds > 0:
        epochs = round(min(LEAST_SECONDS / epoch_seconds, MOST_EPOCHS))
    manifest = Manifest(
        name=name,
        founder=identity.author,
        created=time.time(),
        catalogue=load_task_set(task_set),
        epoch_seconds=epoch_seconds,
        max_age_epochs=max(LEAST_EPOCHS, epochs),
        admission=admission or Open(),
        **bounds,
    )
    return sign_manifest(manifest, identity)


def try_task_set(task_set: str, allowed: Allowed) -> Trial:
    """Check that a task set, with ``allowed`` code, opens and replays identically.

    Raises TaskSetError if it does not, and VerifierError if no process is available.
    """
    files = {**allowed.files, **own_files(task_set)}
    return try_replays(load_task_set(task_set), replace(allowed, files=files))


def cautions(
    signed: bytes, task_set: str, allowed: Allowed, trial: Trial, config: Path
) -> Iterator[str]:
    """Yield what keeps the creator's node from sharing, or from training on its own files well.

    ``allowed`` is what the node's ``config`` names.
    """
    manifest = open_manifest(signed)
    if len(trial.absent) == len(manifest.catalogue):
        yield "no task family opens here, so this node cannot train in this swarm"
    yield from unlisted(manifest.admission, manifest.founder)
    yield from misnamed(manifest.catalogue, allowed)
    jsonl = {spec.name for spec in manifest.catalogue if spec.source == "jsonl"}
    for name, path in own_files(task_set).items():
        if name in jsonl:
            yield from remarks(path)
        if not Path(allowed.files.get(name, "")).is_file():
            key = f"tasks.files.{name} = {toml_value(str(path.absolute()))}"
            yield f"this node does not train on {name} yet: set {key} in {config}"


def remarks(path: Path) -> Iterator[str]:
    """Yield what a file of questions has, and what to correct in it."""
    pairs, by_question = read_pairs(path), dict[str, str]()
    texts = [text for text, answer in pairs if by_question.setdefault(text, answer) != answer]
    held_out = sum(split_of(question) is Split.HELDOUT for question in by_question)
    lines, questions = counted(len(pairs), "line"), counted(len(by_question), "question")
    longest = max(map(len, by_question))
    yield f"{path}: {lines}, {questions}, the longest of {longest} characters; {held_out} held out"
    if texts:
        fault = f"{counted(len({*texts}), 'question')} with several answers, such as"
        remedy = "a right completion is rewarded at random, so keep one"
        yield f"{path} has {fault} {texts[0]!r:.80}: {remedy}"
