"""Founding a swarm: putting a manifest together and signing it."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

from node.config.sections import TasksSection
from node.tasks.catalogue import allowed_by, load_catalogue, own_files
from node.tasks.verifier.replay_trial import Trial, try_replays
from protocol.codec import MAX_COMPLETIONS, MAX_FRAME_BYTES
from protocol.errors import BadSchema
from protocol.identity import Identity
from protocol.manifest import AdmissionRule, Manifest, Open, sign_manifest
from swarm.common.util import counted

TOKEN_BYTES = 8
"""Of a frame, for each token: id, log-prob and text. Compressed groups of 8 answers of 512 tokens
took 5.7 of prose and 4.7 of code, and 9.5 of letters drawn at random, which nothing compresses."""
TEXT_BYTES = 16
"""Of text for each token; words take 4, and a token that is a long run of blanks more."""
ANSWER_BYTES, FRAME_BYTES = 256, 1 << 12
"""What an answer and a frame weigh beside their tokens."""
STEP = 1 << 16
"""Bounds are multiples of this, in bytes."""
MOST_TEXT_BYTES = 1 << 20
"""The manifest's own bound of ``max_text_bytes``."""
FEWEST = 2
"""Answers in a group."""


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """What a manifest allows so that groups of answers fit; never less than what is usual.

    Attributes:
        weight: bytes that a frame with one such group takes, about at the most.
        max_frame_bytes, max_text_bytes, max_completions: as in
            :class:`protocol.manifest.Manifest`.
    """

    weight: int
    max_frame_bytes: int
    max_text_bytes: int
    max_completions: int


def frame_weight(tokens: int, group_size: int) -> int:
    """Bytes of a frame that holds one group of answers of so many tokens, about at the most."""
    return FRAME_BYTES + group_size * (ANSWER_BYTES + TOKEN_BYTES * tokens)


def bounds_for(tokens: int, group_size: int) -> AnswerBounds:
    """The bounds of a swarm whose groups are ``group_size`` answers of up to ``tokens`` tokens.

    Raises:
        BadSchema: the protocol allows no such frames or texts; the message names what it does.
    """
    if not FEWEST <= group_size <= MAX_COMPLETIONS:
        raise BadSchema(
            f"group_size: {group_size}, and a group has {FEWEST} to {MAX_COMPLETIONS} answers"
        )
    if tokens < 1:
        raise BadSchema(f"answer_tokens: {tokens}, and an answer has one or more")
    weight = frame_weight(tokens, group_size)
    if weight > MAX_FRAME_BYTES or TEXT_BYTES * tokens > MOST_TEXT_BYTES:
        raise BadSchema(
            f"answer_tokens: {group_size} answers of {tokens} tokens may weigh {weight} bytes, and "
            f"the protocol's frames hold {MAX_FRAME_BYTES}: take {_most_tokens(group_size)} tokens "
            f"at most{_fewer(tokens)}"
        )
    usual = {f.name: f.default for f in fields(Manifest) if isinstance(f.default, int)}
    return AnswerBounds(
        weight,
        max(usual["max_frame_bytes"], _rounded(weight)),
        max(usual["max_text_bytes"], _rounded(TEXT_BYTES * tokens)),
        max(usual["max_completions"], group_size),
    )


def caution(manifest: Manifest, tokens: int, group_size: int) -> str:
    """What is told where own groups may not fit into this swarm's frames; empty where they do.

    Args:
        tokens: ``engine.max_new_tokens``, or what the policy's context leaves of it.
        group_size: ``engine.group_size``.
    """
    weight = frame_weight(tokens, group_size)
    asked = f"engine.max_new_tokens = {tokens} and engine.group_size = {group_size}"
    remedy = (
        "lower them, or train in a swarm founded with: swarm-node found "
        f"--answer-tokens {tokens} --group-size {group_size}"
    )
    if group_size > manifest.max_completions:
        most = counted(manifest.max_completions, "completion")
        return f"{asked}: this swarm takes groups of {most} (max_completions) and no more: {remedy}"
    if weight > manifest.max_frame_bytes:
        return (
            f"{asked}: a group may weigh {weight} bytes, and this swarm's frames hold "
            f"{manifest.max_frame_bytes} (max_frame_bytes): larger groups are shared without token "
            f"ids and log-probs, or not at all: {remedy}"
        )
    if TEXT_BYTES * tokens > manifest.max_text_bytes:
        bound = manifest.max_text_bytes
        return (
            f"{asked}: this swarm takes answers of {bound} bytes (max_text_bytes); groups with a "
            f"longer one are not shared: {remedy}"
        )
    return ""


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP


def _most_tokens(group_size: int) -> int:
    room = (MAX_FRAME_BYTES - FRAME_BYTES) // group_size - ANSWER_BYTES
    return min(room // TOKEN_BYTES, MOST_TEXT_BYTES // TEXT_BYTES)


def _fewer(tokens: int) -> str:
    """How many answers of so many tokens would fit, where two do."""
    most = (MAX_FRAME_BYTES - FRAME_BYTES) // (ANSWER_BYTES + TOKEN_BYTES * tokens)
    return f", or groups of {most}" if most >= FEWEST else ""


LEAST_EPOCHS = 10
MOST_EPOCHS = 1 << 20
LEAST_SECONDS = 300.0
"""How long a group can be admitted: in a swarm of short epochs these would pass in no time."""


def found_swarm(
    identity: Identity,
    *,
    name: str,
    catalogue: str = "tiny",
    epoch_seconds: float = 60.0,
    admission: AdmissionRule | None = None,
    answers: AnswerBounds | None = None,
) -> bytes:
    """A signed manifest, ready to be pinned and handed to joiners.

    Args:
        identity: the founder's.
        name: for people.
        catalogue: a shipped one's name, or a path ending in ``.toml``.
        epoch_seconds: length of an epoch: about one round of a slow node.
        admission: who may take part; everybody when None.
        answers: what groups of long answers take; the usual bounds when None.

    Raises:
        CatalogueError: the catalogue cannot be read.
        BadSchema: a value is out of its range; the message names it.
    """
    bounds = {} if answers is None else _of_manifest(answers)
    manifest = Manifest(
        name=name,
        founder=identity.author,
        created=time.time(),
        catalogue=load_catalogue(catalogue),
        epoch_seconds=epoch_seconds,
        max_age_epochs=_oldest(epoch_seconds),
        admission=admission or Open(),
        **bounds,
    )
    return sign_manifest(manifest, identity)


def try_catalogue(catalogue: str, tasks: TasksSection) -> Trial:
    """Whether a catalogue opens, and its environments come out alike wherever they are replayed.

    Args:
        catalogue: a shipped one's name, or a path ending in ``.toml``, with its files beside it.
        tasks: what the founder's node may open besides.

    Raises:
        CatalogueError: the catalogue cannot be read or opened, or one does not come out alike.
        JudgeRefused: no process can be had to open it in.
    """
    allowed = allowed_by(tasks)
    files = {**allowed.files, **own_files(catalogue)}
    return try_replays(load_catalogue(catalogue), replace(allowed, files=files))


def _of_manifest(answers: AnswerBounds) -> dict[str, int]:
    return {
        "max_frame_bytes": answers.max_frame_bytes,
        "max_text_bytes": answers.max_text_bytes,
        "max_completions": answers.max_completions,
    }


def _oldest(epoch_seconds: float) -> int:
    """Epochs that a group can be admitted for; the manifest refuses impossible lengths itself."""
    if not epoch_seconds > 0:
        return LEAST_EPOCHS
    return max(LEAST_EPOCHS, round(min(LEAST_SECONDS / epoch_seconds, MOST_EPOCHS)))
