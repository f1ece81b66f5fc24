"""``python -m node.evaluation.ask``: answer one question beside a running node.

It reads one line of JSON from standard input (``folder``, ``config``, ``question`` or null,
``family`` or null, ``base``), writes events as lines of JSON, and exits when the input closes. It
changes nothing in the run folder and uses no network. To spare the node, it runs at low priority
with one thread, no accelerator and half of the free memory, and is the first process killed when
memory runs out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from node.errors import NodeError

NICE = 19
PART_OF_MEMORY = 0.5  # fraction of the free memory that it may allocate
_FIRST_TO_GO = "1000"

Event = dict[str, Any]


def main() -> None:
    """Answer, and report any failure as an ``error`` event."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep output of libraries out of the events

    def tell(event: Event) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    def end_with_parent() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    _step_back()
    try:
        for event in _answers(request):
            tell(event)
    except NodeError as error:
        tell({"event": "error", "error": str(error)})
    except Exception as error:  # noqa: BLE001 - whatever it is, who asked has to hear of it
        message = f"{type(error).__name__}: {error}"
        tell({"event": "error", "error": " ".join(message.split())[:400]})


def _step_back() -> None:
    """Lower this process's priority and limits in favor of the node."""
    os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if os.name == "posix":
        os.nice(NICE)
    if sys.platform == "linux":
        import resource

        budget = int(psutil.virtual_memory().available * PART_OF_MEMORY)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = budget if hard == resource.RLIM_INFINITY else min(budget, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        with suppress(OSError):  # a container may forbid it; the limit above still holds
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


def _answers(request: Event) -> Iterator[Event]:
    yield _stage("loading torch and transformers")
    import torch

    from node.config.config import Config
    from node.evaluation.comparison import manifest_of, question_of, verifier_of
    from node.storage.run_folder import RunFolder

    torch.set_num_threads(1)
    config, folder = Config.model_validate(request["config"]), RunFolder(Path(request["folder"]))
    manifest = manifest_of(folder)
    yield _stage("searching the swarm's tasks for the question")
    with verifier_of(config, manifest) as (verifier, levels):
        question = question_of(verifier, manifest, levels, request["question"], request["family"])
        task = question.task
        fields = {"family": task and task.env, "level": task and task.level}
        yield {"event": "question", "prompt": question.prompt, **fields}
        max_tokens = config.engine.max_new_tokens
        for base in (False, True)[: 1 + bool(request["base"])]:
            yield _stage("loading the untrained model" if base else "loading the trained policy")
            # load one model at a time, because two need twice the memory
            yield from _answer(*_model(config, folder, base), base, verifier, question, max_tokens)
    yield {"event": "end"}


def _model(config: Any, folder: Any, base: bool) -> tuple[Any, str]:
    from node.policy.checkpoint_policy import checkpoint_policy, chosen
    from node.policy.policy import Policy

    section = config.policy.model_copy(update={"device": "cpu"})
    if base:
        return Policy.load(section.model_copy(update={"lora_rank": 0})), section.model
    with chosen(folder) as checkpoint:
        return checkpoint_policy(section, checkpoint), checkpoint.path.name


def _answer(
    policy: Any, name: str, base: bool, verifier: Any, question: Any, max_tokens: int
) -> Iterator[Event]:
    from node.evaluation.comparison import opinion, pieces, silence

    yield {"event": "model", "name": name, "base": base}
    text = ""
    for chunk in pieces(policy, question.prompt, max_tokens):
        text += chunk
        if chunk:
            yield {"event": "text", "text": chunk}
    reward, why = opinion(verifier, question.task, text)
    yield {"event": "opinion", "reward": reward, "unscored": why, "empty": silence(text, question)}


def _stage(label: str) -> Event:
    return {"event": "stage", "what": label}


if __name__ == "__main__":
    main()
