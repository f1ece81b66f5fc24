"""Founding a swarm: putting a manifest together and signing it."""

from __future__ import annotations

import time
from dataclasses import replace

from node.config.sections import TasksSection
from node.network.answer_bounds import AnswerBounds
from node.tasks.catalogue import allowed_by, load_catalogue, own_files
from node.tasks.verifier.replay_trial import Trial, try_replays
from protocol.identity import Identity
from protocol.manifest import AdmissionRule, Manifest, Open, sign_manifest

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
