"""One completion as it is written, for a person to read along."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import TextIteratorStreamer

from node.policy.policy import Policy, unsettled


def stream(
    policy: Policy,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float | None = None,
) -> Iterator[str]:
    """Pieces of one completion's text, as soon as they are known.

    Engines write many completions at a time and tell each when it is done; this writes one.

    Args:
        prompt: token ids, as of :meth:`Policy.encode_prompt`.
        temperature: None takes the most probable token each time.

    Raises:
        ValueError: the prompt leaves no room for a completion.
        Exception: what writing raised, once all that was written before has been handed out.
    """
    policy.check_prompt(prompt)
    room = policy.context_length - len(prompt)
    streamer = TextIteratorStreamer(policy.tokenizer, skip_prompt=True, skip_special_tokens=True)
    failed: list[Exception] = []

    def write() -> None:
        try:
            _write(policy, prompt, streamer, min(max_new_tokens, room), temperature)
        except Exception as error:  # noqa: BLE001 - raised again where the text is read
            failed.append(error)
            streamer.end()  # type: ignore[no-untyped-call]

    writer = threading.Thread(target=write, name="stream", daemon=True)
    writer.start()
    yield from streamer
    writer.join()
    if failed:
        raise failed[0]


@torch.inference_mode()
def _write(
    policy: Policy,
    prompt: Sequence[int],
    streamer: TextIteratorStreamer,
    most: int,
    temperature: float | None,
) -> None:
    ids = torch.tensor([list(prompt)], device=policy.device)
    drawn: dict[str, Any] = {"do_sample": False}
    if temperature is not None:
        # The whole vocabulary is sampled from, as engines do.
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    # A penalty on repetition, which many a model comes with, is none of what it is trained on.
    unsettled(policy.model).generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        streamer=streamer,
        max_new_tokens=most,
        eos_token_id=list(policy.stop_ids),
        pad_token_id=policy.pad_id,
        **drawn,
    )
