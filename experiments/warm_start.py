"""A fixed warm start of a real model: what the base policies of an experiment begin with."""

from __future__ import annotations

import random

from experiments.settings import Settings
from node.config.learning import LearnerSection
from node.errors import UsageError
from node.learner.supervised import SupervisedLearner
from node.policy.policy import Policy
from node.tasks.task import kept
from swarm.groups import Split

EXAMPLES = 16  # of a step
LR_FACTOR, MOST_LR = 5, 1e-3  # of the nodes' rate, and of what comes of it, as in ``warm-start``
WARM_UP = 5


def warm_started(settings: Settings, seed: int) -> Policy:
    """Train ``settings.model`` on examples of the tasks, a fixed number of steps.

    Held-out tasks are never among the examples. Raises UsageError if a task has no known answer.
    """
    policy = Policy.load(settings.policy(settings.model))
    rate = min(LR_FACTOR * settings.lr, MOST_LR)
    learner = SupervisedLearner(policy, LearnerSection(lr=rate, warmup_steps=WARM_UP))
    sources = settings.setup.tasks.open()
    levels = [(name, level) for name, source in sources.items() for level in range(source.levels)]
    rng = random.Random(f"warm-start/{seed}")
    for _ in range(settings.warm_start):
        examples = []
        with kept():
            for name, level in rng.choices(levels, k=EXAMPLES):
                task = sources[name].build(level, rng.getrandbits(63), Split.TRAIN)
                written = sources[name].written(task)
                if written is None:
                    remedy = "Leave the option out."
                    raise UsageError("--warm-start", f"{name} has no known answers", remedy)
                examples.append((task.prompt, written))
        learner.step(examples)
    policy.version = 0
    return policy
