"""``python -m node.evaluation.ask``: answers one question beside a node that works.

It reads one line of JSON from its standard input (``folder``, ``config``, ``question`` or null,
``family`` or null, ``base``), writes what happens as lines of JSON, and ends as soon as that input
ends. It changes nothing in the run folder, asks no other machine, and steps back behind the node: a
low priority, one thread, no accelerator, half of the memory that is free, and the first to go where
there is none left.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from node.errors import NodeError, UsageError
from node.evaluation.question import Question, drawn, recognised
from node.policy.policy import Policy, stream
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import Manifest
from swarm.groups import TaskRef
from swarm.verification import JudgeRefused

NICE = 19
PART_OF_MEMORY = 0.5
"""Of what is free, above which it gets none."""
_FIRST_TO_GO = "1000"

Event = dict[str, Any]


def main() -> None:
    """Answer, and end well whatever comes of it: an ``error`` is an answer too."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no event

    def tell(event: Event) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_who_asked, daemon=True).start()
    _step_back()
    try:
        for event in _answers(asked):
            tell(event)
    except NodeError as error:
        tell({"event": "error", "error": str(error)})
    except Exception as error:  # noqa: BLE001 - whatever it is, who asked has to hear of it
        words = f"{type(error).__name__}: {error}"
        tell({"event": "error", "error": " ".join(words.split())[:400]})


def _end_with_who_asked() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _step_back() -> None:
    """Leave the machine to the node."""
    os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if os.name == "posix":
        os.nice(NICE)
    if sys.platform == "linux":
        import resource

        most = int(psutil.virtual_memory().available * PART_OF_MEMORY)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        within = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (within, hard))
        with suppress(OSError):  # a container may forbid it, and the limit above holds anyway
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


def _answers(asked: Event) -> Iterator[Event]:
    yield _stage("loading torch and transformers")
    import torch

    from node.config.config import Config
    from node.evaluation.comparison import pinned_manifest, verifier_of
    from node.storage.run_folder import RunFolder

    torch.set_num_threads(1)
    config, folder = Config.model_validate(asked["config"]), RunFolder(Path(asked["folder"]))
    manifest = pinned_manifest(folder)
    yield _stage("looking for the question among those of the swarm")
    with verifier_of(config, manifest) as (verifier, levels):
        question = question_of(verifier, manifest, levels, asked["question"], asked["family"])
        task = question.task
        about = {"family": task and task.env, "level": task and task.level}
        yield {"event": "question", "prompt": question.prompt, **about}
        most = config.engine.max_new_tokens
        for base in (False, True)[: 1 + bool(asked["base"])]:
            yield _stage("loading the untrained model" if base else "loading the trained policy")
            # one model at a time: two need twice the memory
            yield from _answer(*_model(config, folder, base), base, verifier, question, most)
    yield {"event": "end"}


def _model(config: Any, folder: Any, base: bool) -> tuple[Any, str]:
    from node.policy.lora import checkpoint_policy, chosen
    from node.policy.policy import Policy

    wanted = config.policy.model_copy(update={"device": "cpu"})
    if base:
        return Policy.load(wanted.model_copy(update={"lora_rank": 0})), wanted.model
    with chosen(folder) as loaded:
        return checkpoint_policy(wanted, loaded), loaded.path.name


def _answer(
    policy: Any, name: str, base: bool, verifier: Any, question: Any, most: int
) -> Iterator[Event]:

    yield {"event": "model", "name": name, "base": base}
    text = ""
    for piece in pieces(policy, question.prompt, most):
        text += piece
        if piece:
            yield {"event": "text", "text": piece}
    reward, why = opinion(verifier, question.task, text)
    yield {"event": "opinion", "reward": reward, "unscored": why}


def _stage(what: str) -> Event:
    return {"event": "stage", "what": what}


if __name__ == "__main__":
    main()


LOOKED_AT = 4096
"""Instances of a swarm's families among which a typed question is looked for: seconds."""


def question_of(
    verifier: Verifier,
    manifest: Manifest,
    levels: Sequence[tuple[str, int]],
    text: str | None,
    family: str | None,
) -> Question:
    """The question that was typed, or where none was, one that nobody trains on.

    Args:
        levels: ``(env, level)`` pairs that a node draws from.
        family: of which it has to be; None is any.

    Raises:
        UsageError: there is no such family, or nothing was typed.
        JudgeRefused: it cannot be built.
    """
    if family is not None:
        served = dict.fromkeys(env for env, _ in levels)
        levels = [pair for pair in levels if pair[0] == family]
        if not levels:
            raise UsageError("--family", family, f"This swarm has: {', '.join(served)}.")
    rng = random.Random()
    if text is None:
        return drawn(verifier, levels, rng)
    if not text.strip():
        raise UsageError("QUESTION", text, "Type one, or leave it out to have one drawn.")
    return recognised(verifier, manifest.catalogue, levels, text, rng, LOOKED_AT)


def pieces(
    policy: Policy, prompt: str, max_new_tokens: int, temperature: float | None = None
) -> Iterator[str]:
    """A policy's answer as it is written; see :func:`node.policy.policy.stream`.

    Raises:
        UsageError: the prompt leaves no room for an answer.
    """
    ids = policy.encode_prompt(prompt)
    if len(ids) >= policy.context_length:
        raise UsageError(
            "QUESTION",
            f"{len(ids)} tokens, context {policy.context_length}",
            "Ask a shorter one.",
        )
    return stream(policy, ids, max_new_tokens=max_new_tokens, temperature=temperature)


def opinion(verifier: Verifier, task: TaskRef | None, text: str) -> tuple[float | None, str | None]:
    """The reward of an answer, or why there is none."""
    if task is None:
        return None, "no family of this swarm is known to ask this"
    try:
        return verifier.judge(task, [text]).rewards[0], None
    except JudgeRefused as refused:
        return None, str(refused)
