"""Groups, policies and updates that the tests of the learner share."""

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
"""Spread of a policy to which every token is as probable as another."""
PROMPT = (1, 2, 3)
HOT = TrainingGroup(
    PROMPT,
    tuple(TrainingCompletion((n,), (True,), (-65504.0,)) for n in (5, 90)),
    (0.0, 1.0),
    own=False,
)
"""A single token each, which a mean over tokens does not thin out."""


def group(seed: int, rewards: tuple[float, ...], *, own: bool = True) -> TrainingGroup:
    draw = random.Random(seed)
    completions = []
    for _ in rewards:
        length = draw.randint(1, 6)
        ids = (*(draw.randrange(95) for _ in range(length)), 96)
        behaviour = tuple(draw.uniform(-4.0, -0.1) for _ in ids)
        completions.append(TrainingCompletion(ids, (True,) * len(ids), behaviour))
    prompt = tuple(draw.randrange(95) for _ in range(draw.randint(2, 9)))
    return TrainingGroup(prompt, tuple(completions), rewards, own)


MIXED = [group(1, (0.0, 1.0, 0.0)), group(2, (1.0, 0.0)), group(3, (0.2, 0.4, 0.9, 0.0))]


def drawn(seed: int, completions: int, length: int, *, own: bool = False) -> TrainingGroup:
    """Random right and wrong answers, whose author claims to have found them improbable."""
    draw = random.Random(seed)
    lines = [tuple(draw.randrange(95) for _ in range(length)) for _ in range(completions)]
    done = tuple(TrainingCompletion(ids, (True,) * length, (-65504.0,) * length) for ids in lines)
    return TrainingGroup((1, 2, seed), done, tuple(float(n % 2) for n in range(completions)), own)


HONEST = [drawn(n, 4, 24, own=n % 2 == 0) for n in range(11)]
FAT = drawn(50, 64, 40)
"""What mallory sends: as much as a group may hold."""


def external(groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
    return [replace(each, own=False) for each in groups]


def with_completions(each: TrainingGroup, **changes) -> TrainingGroup:
    """The group, its completions changed alike; callables are given each of them."""

    def changed(done: TrainingCompletion) -> TrainingCompletion:
        return replace(done, **{k: v(done) if callable(v) else v for k, v in changes.items()})

    return replace(each, completions=tuple(map(changed, each.completions)))


def behaving(groups: Sequence[TrainingGroup], shift: float) -> list[TrainingGroup]:
    """The groups, sampled by a policy that differs from the learner's by ``shift`` nats."""
    policy = random_policy()

    @torch.no_grad()
    def sampled(each: TrainingGroup) -> TrainingGroup:
        def behaviour(done: TrainingCompletion) -> tuple[float, ...]:
            return tuple((lone_logprobs(policy, each.prompt_ids, done.ids) - shift).tolist())

        return with_completions(each, behaviour=behaviour)

    return [sampled(each) for each in groups]


def dated(groups: Sequence[TrainingGroup], version: int) -> list[TrainingGroup]:
    """The groups, written by this version of the policy."""
    return [with_completions(g, versions=lambda c: (version,) * len(c.ids)) for g in groups]


def trajectory(
    seed: int, turns: int, *, known: bool = True, answered: bool = False
) -> TrainingCompletion:
    """So many turns of one to four tokens; ``answered``: something is read behind the last."""
    draw = random.Random(seed)
    ids: list[int] = []
    trained: list[bool] = []
    for turn in range(turns):
        own = draw.randint(1, 4)
        read = draw.randint(1, 3) if turn < turns - 1 or answered else 0
        ids += [draw.randrange(95) for _ in range(own + read)]
        trained += [True] * own + [False] * read
    mu = tuple(draw.uniform(-4.0, -0.1) for _ in ids) if known else None
    return TrainingCompletion(tuple(ids), tuple(trained), mu)


def played(
    turns: Sequence[int], rewards: Sequence[float], *, own: bool = True, seed: int = 0
) -> TrainingGroup:
    """A trajectory for each number of turns."""
    done = tuple(trajectory(100 * seed + n, count) for n, count in enumerate(turns))
    return TrainingGroup(PROMPT, done, tuple(rewards), own)


def policy_at(version: int) -> Policy:
    policy = random_policy()
    policy.version = version
    return policy


def spoil(policy: Policy) -> Policy:
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")
    return policy


class Cramped(Qwen3ForCausalLM):
    """A decoder on a machine whose memory holds so many tokens, on the way forth or back."""

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
    """The gradient that is handed to the optimizer, which takes no step, and the report."""
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
