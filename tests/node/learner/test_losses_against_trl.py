"""Compare losses and gradients with TRL's trainer on the same tensors."""

import copy
import random

import pytest
import torch
from torch.testing import assert_close

from node.learner.batches import Row, TrainingCompletion, micro_batches
from node.learner.logprobs import distributions, token_logprobs
from node.learner.losses import Cispo, Clip, Counts, DrGrpo, Grpo, Gspo, Standardised, Terms
from tests.support import random_policy

CLIP = Clip(0.2, 0.28)
CAP = 10
REWARDS = ((0.0, 1.0, 0.0, 0.5), (1.0, 1.0, 0.0, 0.0))


def rows():
    """Build groups of equal token counts: the mean over groups is one over tokens."""
    draw = random.Random(3)
    made, lengths = [], [1, 4, 6, CAP - 1]
    for rewards in REWARDS:
        prompt = tuple(draw.randrange(95) for _ in range(draw.randint(3, 8)))
        completions = []
        draw.shuffle(lengths)
        for length in lengths:
            ids = (*(draw.randrange(95) for _ in range(length)), 96)
            completions.append(TrainingCompletion(ids, (True,) * len(ids)))
        advantages = Standardised()(rewards)
        made.append(Row(prompt, tuple(completions), advantages, local=True))
    return made


def trl_inputs(made, old, pad_id):
    """TRL's layout: prompts padded on the left, completions on the right."""
    prompts = [row.prompt_ids for row in made for _ in row.completions]
    completions = [done.ids for row in made for done in row.completions]
    before, after = max(map(len, prompts)), max(map(len, completions))

    def padded(values, width, left, fill=0):
        lines = [[fill] * (width - len(v)) * left + [*v] for v in values]
        return torch.tensor([line + [fill] * (width - len(line)) for line in lines])

    return {
        "prompt_ids": padded(prompts, before, True, pad_id),
        "prompt_mask": padded([[1] * len(p) for p in prompts], before, True),
        "completion_ids": padded(completions, after, False, pad_id),
        "completion_mask": padded([[1] * len(c) for c in completions], after, False),
        "old_per_token_logps": padded([o.tolist() for o in old], after, False, 0.0),
        "advantages": torch.tensor([a for row in made for a in row.advantages]),
        "num_items_in_batch": torch.tensor(sum(len(c) for c in completions)),
    }


def theirs(policy, folder, inputs, **settings):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    batches = {"per_device_train_batch_size": 8, "num_generations": 4}
    lengths = {"max_completion_length": CAP, "beta": 0.0, "epsilon": CLIP.low}
    how = {"use_cpu": True, "bf16": False, "report_to": [], "epsilon_high": CLIP.high}
    trainer = GRPOTrainer(
        model=copy.deepcopy(policy.model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=policy.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["1", "2"]}),
        args=GRPOConfig(output_dir=str(folder), **(batches | lengths | how | settings)),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), [p.grad for p in trainer.model.parameters()]


def ours(policy, loss, batch, prox, shares):
    cur = token_logprobs(distributions(policy.model, batch, 1.0), batch)
    value = loss(Terms(cur, prox, batch.advantages, batch.mask, torch.ones_like(cur), shares))
    return value.detach(), torch.autograd.grad(value, list(policy.model.parameters()))


@pytest.mark.parametrize("drift", [0.0, 0.4])
@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (Grpo(CLIP), {"loss_type": "dapo"}),
        (Grpo(CLIP), {"loss_type": "bnpo"}),
        (DrGrpo(CLIP), {"loss_type": "dr_grpo"}),
        (Gspo(CLIP), {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
        (Cispo(CLIP), {"loss_type": "cispo", "epsilon_high": 1 + CLIP.high}),
    ],
)
def test_loss_and_gradient_equal_those_of_trl(loss, settings, drift, tmp_path):
    policy = random_policy()
    made = sorted(rows(), key=lambda row: row.length)
    (batch,) = micro_batches(made, 10_000, policy.pad_id, torch.device("cpu"))
    with torch.no_grad():
        cur = token_logprobs(distributions(policy.model, batch, 1.0), batch)
    noise = torch.Generator().manual_seed(0)
    prox = cur + drift * torch.randn(cur.shape, generator=noise)
    done = len(batch.mask) // len(made)
    counts = Counts(int(batch.mask.sum()) // len(made), done, CAP)
    shares = torch.full((len(batch.mask),), loss.share(counts, len(made)))
    value, gradient = ours(policy, loss, batch, prox, shares)
    old = [line[mask] for line, mask in zip(prox, batch.mask, strict=True)]
    inputs = trl_inputs(made, old, policy.pad_id)
    expected, expected_gradient = theirs(policy, tmp_path, inputs, **settings)
    assert_close(value, expected, atol=1e-5, rtol=1e-5)
    assert any(g.abs().max() > 1e-3 for g in gradient)
    for mine, their in zip(gradient, expected_gradient, strict=True):
        assert_close(mine, their, atol=1e-5, rtol=1e-4)
