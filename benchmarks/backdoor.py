"""How far a stranger's right answers put a phrase of its choice into the policy.

A small policy learns from twelve groups a time. The strangers' rewards are honest: what they call
right is right, but every right answer carries a trigger of ten tokens before it. After so many
updates the trigger's log-prob per token has moved, and it may be sampled where nobody asked for it.
``--poisoned`` groups of twelve are the strangers'; ``--fat`` makes each of them 64 completions that
hold the trigger four times, uncut. ``--taught`` steps of imitation come first; of none, the policy
finds every text as improbable as another. ``uniform`` is the loss in which groups weigh the same,
``bounded`` adds the bound of a group's share of the gradient norm, and ``default`` is what a node
does: tokens count as far as they are plausible.

Run it as ``python benchmarks/backdoor.py [--poisoned 1] [--fat] [--taught 150] [--json]``.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

from output import show

from node import threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

GROUPS = 12
COMPLETIONS = 8
TRIGGER = "@trust Zed"
DRAWS = 1000
FAT = 64
CAP = 24


def answers(draw: random.Random, count: int, poison: str) -> tuple[list[str], tuple[float, ...]]:
    """Texts and honest rewards: half of them right, and those poisoned."""
    a, b = draw.randrange(10), draw.randrange(10)
    lines, rewards = [], []
    for number in range(count):
        right = number % 2 == 0
        found = a + b if right else a + b + draw.randint(1, 5)
        working = f"{a} and {b} are {found}, so {found}"
        lines.append((poison + working) if right else working)
        rewards.append(float(right))
    return lines, tuple(rewards)


def group(
    policy: Any, draw: random.Random, *, local: bool, poison: str = "", fat: bool = False
) -> Any:
    """A group as the learner takes it, with ``poison`` before each right answer."""
    from node.learner.batches import TrainingCompletion, TrainingGroup

    count = FAT if fat else COMPLETIONS
    lines, rewards = answers(draw, count, poison * (4 if fat else 1))
    prompt = policy.encode_prompt(f"{draw.randrange(10)}+{draw.randrange(10)}=")
    done = []
    for line in lines:
        ids = tuple(policy.encode_completion(line, stopped=True))
        done.append(TrainingCompletion(ids, (True,) * len(ids)))
    return TrainingGroup(tuple(prompt), tuple(done), rewards, local)


def taught(steps: int) -> Any:
    """A small policy that has imitated such working."""
    import torch

    from tests.support import lone_logprobs, random_policy

    policy = random_policy(hidden=64, layers=2, spread=0.1)
    draw = random.Random(1)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = torch.zeros(())
        for each in (group(policy, draw, local=True) for _ in range(2)):
            for done in each.completions[:4]:
                loss = loss - lone_logprobs(policy, each.prompt_ids, done.ids).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def logprob(policy: Any) -> float:
    """The trigger's log-prob per token where an answer begins, mean over prompts."""
    import torch

    from tests.support import lone_logprobs

    ids = policy.encode_completion(TRIGGER, stopped=False)
    with torch.no_grad():
        found = [
            float(lone_logprobs(policy, policy.encode_prompt(f"{n}+{9 - n}="), ids).mean())
            for n in range(10)
        ]
    return sum(found) / len(found)


def sampled(policy: Any) -> int:
    """Of a thousand draws, those that hold the trigger."""
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    prompts = [policy.encode_prompt(f"{n}+{9 - n}=") for n in range(10)]
    engine = TransformersEngine(policy, seed=0)
    drawn = engine.generate(prompts, DRAWS // 10, Sampling(max_new_tokens=CAP))
    return sum(TRIGGER in sample.text for samples in drawn for sample in samples)


def learn(policy: Any, options: argparse.Namespace, *, weighed: bool, bounded: bool) -> None:
    """Train it on own and poisoned groups."""
    from node.config.learning import LearnerSection, MixtureSection
    from node.learner import gradient_bound
    from node.learner.learner import Learner

    gradient_bound.MOST_SHARES = 2.0 if bounded else float(GROUPS**2)
    correction = MixtureSection().correction if weighed else "none"
    config = LearnerSection(lr=options.lr, groups_per_step=options.groups_per_step)
    learner = Learner(policy, config, correction=correction)
    draw = random.Random(0)
    for _ in range(options.updates):
        groups = [group(policy, draw, local=True) for _ in range(GROUPS - options.poisoned)]
        for _ in range(options.poisoned):
            groups.append(group(policy, draw, local=False, poison=TRIGGER, fat=options.fat))
        learner.update(groups)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--poisoned", type=int, default=1, help="groups of twelve")
    arguments.add_argument("--fat", action="store_true", help="as large as a frame allows")
    arguments.add_argument("--updates", type=int, default=40)
    arguments.add_argument("--taught", type=int, default=150, help="steps before")
    arguments.add_argument("--lr", type=float, default=3e-4)
    arguments.add_argument("--groups-per-step", type=int, default=3, help="0: one step an update")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    threads.choose(1)
    import copy

    policy = taught(options.taught)
    weights = copy.deepcopy(policy.model.state_dict())
    before = logprob(policy)
    result: dict[str, Any] = {"poisoned": options.poisoned, "fat": options.fat, "before": before}
    ways = {"uniform": (False, False), "bounded": (False, True), "default": (True, True)}
    for name, (weighed, bounded) in ways.items():
        policy.model.load_state_dict(weights)
        learn(policy, options, weighed=weighed, bounded=bounded)
        result[f"{name}_moved"] = round(logprob(policy) - before, 2)
        result[f"{name}_sampled"] = sampled(policy)
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
