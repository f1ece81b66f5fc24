"""Test on every reasoning-gym family whether scoring an answer runs it as code.

Run as a script in an empty folder, where a payload that runs leaves a mark. Prints the results.
"""

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from node.tasks.sources.reasoning_gym import import_library

MARK = "executed"
CALLS = (
    f"__import__('os').environ.__setitem__('{MARK}','1')",
    f"exec(\"import os;os.environ['{MARK}']='1'\")",
)
TAGS = (
    f"!!python/object/apply:os.mkdir ['{MARK}']",
    f"[!!python/object/apply:os.mkdir ['{MARK}']]",
)
WRAPPINGS = (
    "{call}",
    "[{call}]",
    "[[{call}]]",
    "({call})",
    "{{{call}}}",
    '{{"a":{call}}}',
    "{call}+{right}",
    "{call} or {right}",
    "{right} and {call}",
    "{right},{call}",
    "{right};{call}",
    "{right}\n{call}",
    "x={call}",
    "${call}$",
    "\\boxed{{{call}}}",
    "<answer>{call}</answer>",
)
ITEMS = 2
SECONDS_A_TEXT = 5
"""CPU seconds per text, so a busy machine does not abort a text."""


def texts(right: str) -> Iterator[str]:
    """Yield every payload in every wrapping, some around the right answer."""
    for call in CALLS:
        for wrapping in WRAPPINGS:
            yield wrapping.format(call=call, right=right)
    yield from TAGS


def executes(dataset: Any) -> bool:
    for index in range(ITEMS):
        entry = dataset[index]
        for text in texts(str(entry["answer"])):
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_A_TEXT)
            # Errors that the scorer raises on such a text do not matter here.
            with suppress(Exception):
                dataset.score_answer(text, entry)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if MARK in os.environ or Path(MARK).exists():
                return True
    return False


def probe() -> dict[str, bool]:
    results = {}
    factory = import_library()
    for family in sorted(factory.DATASETS):
        if family == "composite":
            continue
        os.environ.pop(MARK, None)
        with suppress(FileNotFoundError):
            Path(MARK).rmdir()
        results[family] = executes(factory.create_dataset(family, seed=0, size=8))
    return results


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
    print("\n" + json.dumps(probe()))
