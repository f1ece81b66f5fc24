"""Print a digest of tasks and scores per family, which two runs must agree on."""

import hashlib
import json
import random
import sys

import numpy

from node.tasks.sources.reasoning_gym import ReasoningGym, import_library
from node.tasks.task import TaskSource
from protocol.manifest import EnvSpec
from swarm.groups import Split

TASKS = 8
MORE = {"codeio": 240, "list_functions": 60}
"""More tasks for families whose questions seldom differ."""


def digest(family: str, noise: random.Random) -> str:
    spec = EnvSpec(family, "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    random.seed(noise.random())
    source = TaskSource(family, spec.template, "text", ReasoningGym.open(spec, [{}]))
    hasher = hashlib.sha256()
    seeds = list(range(MORE.get(family, TASKS)))
    # The order of requests must not matter either.
    noise.shuffle(seeds)
    results = {}
    for seed in seeds:
        random.seed(noise.random())
        numpy.random.seed(noise.randrange(1 << 32))
        task = source.build(0, seed, Split.TRAIN)
        texts = (str(task.entry.get("answer")), "1", "no idea")
        results[seed] = [task.prompt, texts[0], [scored(source, task, text) for text in texts]]
    hasher.update(json.dumps([results[seed] for seed in sorted(results)]).encode())
    return hasher.hexdigest()


def scored(source: TaskSource, task, text: str) -> object:
    try:
        return source.score(task, text)
    except Exception as error:  # noqa: BLE001 - errors must be repeatable too
        return type(error).__name__


if __name__ == "__main__":
    noise = random.Random(sys.argv[1])
    families = sorted(set(import_library().DATASETS) - {"composite"})
    print("\n" + json.dumps({family: digest(family, noise) for family in families}))
