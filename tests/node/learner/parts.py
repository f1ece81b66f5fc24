"""Groups, policies and updates shared by the learner tests."""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import Qwen3ForCausalLM

from node.config.learning import LearnerSection
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.update_stats import UpdateStats
from node.policy.policy import Policy
from tests.support import lone_logprobs, random_policy

CONFIG = LearnerSection(lr=1e-3, max_grad_norm=1e9)
LOSSES = ["grpo", "dr_grpo", "gspo", "cispo"]
EVEN = 0.05
"""Spread of a random policy that gives all tokens about equal probability."""
PROMPT = (1, 2, 3)
HOT = TrainingGroup(
    PROMPT,
    tuple(TrainingCompletion((n,), (True,), (-65504.0,)) for n in (5, 90)),
    (0.0, 1.0),
    local=False,
)
"""Single-token completions: a mean over tokens does not dilute them."""


def group(seed: int, rewards: tuple[float, ...], *, local: bool = True) -> TrainingGroup:
    draw = random.Random(seed)
    completions = []
    for _ in rewards:
        length = draw.randint(1, 6)
        ids = (*(draw.randrange(95) for _ in range(length)), 96)
        behaviour = tuple(draw.uniform(-4.0, -0.1) for _ in ids)
        completions.append(TrainingCompletion(ids, (True,) * len(ids), behaviour))
    prompt = tuple(draw.randrange(95) for _ in range(draw.randint(2, 9)))
    return TrainingGroup(prompt, tuple(completions), rewards, local)


MIXED = [group(1, (0.0, 1.0, 0.0)), group(2, (1.0, 0.0)), group(3, (0.2, 0.4, 0.9, 0.0))]


def drawn(seed: int, completions: int, length: int, *, local: bool = False) -> TrainingGroup:
    """Build random right and wrong answers with claimed log-probs of -65504."""
    draw = random.Random(seed)
    lines = [tuple(draw.randrange(95) for _ in range(length)) for _ in range(completions)]
    done = tuple(TrainingCompletion(ids, (True,) * length, (-65504.0,) * length) for ids in lines)
    return TrainingGroup((1, 2, seed), done, tuple(float(n % 2) for n in range(completions)), local)


HONEST = [drawn(n, 4, 24, local=n % 2 == 0) for n in range(11)]
FAT = drawn(50, 64, 40)
"""Mallory's group, of the maximum size."""


def external(groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
    return [replace(each, local=False) for each in groups]


def with_completions(each: TrainingGroup, **changes) -> TrainingGroup:
    """Return the group with changed completions; callables take each completion."""

    def changed(done: TrainingCompletion) -> TrainingCompletion:
        return replace(done, **{k: v(done) if callable(v) else v for k, v in changes.items()})

    return replace(each, completions=tuple(map(changed, each.completions)))


def behaving(groups: Sequence[TrainingGroup], shift: float) -> list[TrainingGroup]:
    """Return the groups with log-probs ``shift`` nats below the learner's."""
    policy = random_policy()

    @torch.no_grad()
    def sampled(each: TrainingGroup) -> TrainingGroup:
        def behaviour(done: TrainingCompletion) -> tuple[float, ...]:
            return tuple((lone_logprobs(policy, each.prompt_ids, done.ids) - shift).tolist())

        return with_completions(each, behaviour=behaviour)

    return [sampled(each) for each in groups]


def dated(groups: Sequence[TrainingGroup], version: int) -> list[TrainingGroup]:
    """Return the groups, sampled by this version of the policy."""
    return [with_completions(g, versions=lambda c: (version,) * len(c.ids)) for g in groups]


def trajectory(
    seed: int, turns: int, *, known: bool = True, answered: bool = False
) -> TrainingCompletion:
    """Build a trajectory; ``answered`` adds tokens that are read after the last turn."""
    draw = random.Random(seed)
    ids: list[int] = []
    trained: list[bool] = []
    for turn in range(turns):
        local = draw.randint(1, 4)
        read = draw.randint(1, 3) if turn < turns - 1 or answered else 0
        ids += [draw.randrange(95) for _ in range(local + read)]
        trained += [True] * local + [False] * read
    mu = tuple(draw.uniform(-4.0, -0.1) for _ in ids) if known else None
    return TrainingCompletion(tuple(ids), tuple(trained), mu)


def played(
    turns: Sequence[int], rewards: Sequence[float], *, local: bool = True, seed: int = 0
) -> TrainingGroup:
    """Return a group with one trajectory per number of turns."""
    done = tuple(trajectory(100 * seed + n, count) for n, count in enumerate(turns))
    return TrainingGroup(PROMPT, done, tuple(rewards), local)


def policy_at(version: int) -> Policy:
    policy = random_policy()
    policy.version = version
    return policy


def spoil(policy: Policy) -> Policy:
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")
    return policy


class Cramped(Qwen3ForCausalLM):
    """A decoder that runs out of memory above ``room`` tokens, forward or backward."""

    room = 1 << 30
    error: RuntimeError = torch.OutOfMemoryError("CUDA out of memory")
    backwards = False

    def forward(self, input_ids, **settings):
        full = input_ids.numel() > self.room
        if full and not self.backwards:
            raise self.error
        output = super().forward(input_ids, **settings)
        if full and output.logits.requires_grad:
            output.logits.register_hook(self._fail)
        return output

    def _fail(self, gradient):
        raise self.error


def cramped_policy(room: int, **settings) -> Policy:
    plain = random_policy(**settings)
    model = Cramped(plain.model.config).to(plain.model.dtype)
    model.load_state_dict(plain.model.state_dict())
    model.room = room
    return Policy(model, plain.tokenizer, "cramped")


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in policy.model.parameters()]).clone()


def update(
    policy: Policy, groups, config: LearnerSection = CONFIG, *, sharing=..., **settings
) -> tuple[torch.Tensor, UpdateStats]:
    """Return the gradient given to the optimizer, without a step, and the stats."""
    learner, caught = Learner(policy, config, **settings), []
    if sharing is not ...:
        learner.sharing = sharing
    learner.optimizer.step = lambda: caught.append(
        torch.cat([p.grad.flatten() for p in policy.model.parameters()]).clone()
    )
    stats = learner.update(groups)
    learner.optimizer.discard()
    return (*caught, torch.zeros_like(weights(policy)))[0], stats


def gradient_of(
    groups, config: LearnerSection = CONFIG, spread: float = 0.3, **settings
) -> torch.Tensor:
    return update(random_policy(spread=spread), groups, config, **settings)[0]
