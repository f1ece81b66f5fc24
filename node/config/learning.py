"""The config sections of the model, the learner and the batch composition."""

from __future__ import annotations

from typing import Literal

from node.config.registry import ADVANTAGES, CORRECTIONS, LOSSES, SELECTIONS, kind_key, options_key
from node.config.schema import DecayRates, Options, Refusals, Section, Texts, key, within


class PolicySection(Section):
    """The model to train."""

    model: str = key(
        "tiny",
        'A folder, a hub id, or one of the shipped models "tiny", "tiny-wide", "tiny-working" and '
        '"tiny-games". '
        "A relative folder is looked for beside this file.",
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = key(
        "float32", "Number format of the weights."
    )
    device: str = key(
        "auto",
        '"auto" takes a GPU when there is one; or "cpu", "cuda", "cuda:1", "mps".',
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
    )
    lora_rank: int = key(
        0,
        "Above 0, train low-rank adapters of this rank (LoRA) and leave the weights as they are: "
        "far less memory (needs the extra: swarm-node[lora]). They want a higher learner.lr. 0: "
        "train all weights.",
        **within(0, 1024),
    )
    lora_alpha: int = key(32, "What the adapters add is scaled by lora_alpha / lora_rank.", ge=1)
    lora_targets: Texts = key(
        (),
        'Linear layers that get an adapter, by the end of their names: ["q_proj", "v_proj"]. '
        "None: all of the decoder.",
    )
    chat_template_kwargs: Options = key(
        {},
        "What the chat template is handed beside the question, such as { enable_thinking = false } "
        "with Qwen3. Nodes whose prompts are to be alike set the same.",
    )


class LearnerSection(Section):
    """How the policy is updated."""

    loss: str = kind_key(LOSSES, "grpo", "The policy loss.")
    loss_options: Options = options_key("loss")
    advantage: str = kind_key(
        ADVANTAGES,
        "grpo",
        "How a group's rewards become advantages: less their mean, and divided by their standard "
        'deviation ("grpo") or not ("dr_grpo").',
    )
    advantage_options: Options = options_key("advantage")
    turn_credit: float = key(
        0.0,
        "How much of a turn's advantage is its own, measured against the same turn of the group's "
        "other trajectories; the rest is that of the whole trajectory. 0: none of it. Answers of "
        "one turn stay as they are.",
        **within(0, 1),
    )
    turn_discount: float = key(
        0.5,
        'What a reward is worth one turn earlier, as a share of it (see "turn_credit"): below 1, '
        "the shorter of two trajectories that end alike did better.",
        **within(0, 1),
    )
    turns_kept: float = key(
        1.0,
        "Share of the turns of a group's trajectories that are trained on: those in which their "
        "writer was most undecided, by the mean of its tokens' log-probs. Turns without log-probs "
        "always are.",
        gt=0,
        le=1,
    )
    clip_low: float = key(
        0.2,
        "How far the ratio may fall below 1. Each step of an update begins with a ratio of 1: the "
        'clip acts where epochs is above 1, or with proximal_policy = "versions".',
        **within(0, 1),
    )
    clip_high: float = key(0.28, "How far the ratio may rise above 1.", ge=0)
    optimizer: Literal["adamw", "adamw8bit"] = key(
        "adamw",
        '"adamw" keeps two float32 numbers for every trained weight, "adamw8bit" two bytes (needs '
        "the extra: swarm-node[adamw8bit]).",
    )
    offload: bool = key(
        False,
        "Keep the optimizer's numbers, gradients and float32 weights in main memory and step "
        "there: a GPU holds the weights alone while the engine generates, and updates take longer.",
    )
    lr: float = key(
        3e-4,
        "Learning rate of AdamW. By the model's parameters: 3e-4 below 10 million, 3e-5 below 100 "
        "million, 2e-5 below 200 million, 1e-5 below 400 million, 1e-6 from there on; with "
        "lora_rank ten times as much, at most 3e-4. swarm-node plan and init --model follow this "
        "rule.",
        gt=0,
        le=1,
    )
    betas: DecayRates = key((0.9, 0.99), "AdamW's two decay rates.", min_length=2, max_length=2)
    weight_decay: float = key(0.0, "AdamW's weight decay.", ge=0)
    epochs: int = key(1, "Passes over each update's groups.", ge=1, le=64)
    groups_per_step: int = key(
        3,
        "An update has a step for every so many groups whose rewards differ, own and external: "
        "what the swarm adds makes more steps, and not only surer ones. 0: one step for all.",
        **within(0, 4096, "groups"),
    )
    micro_batch_tokens: int = key(
        8192,
        "Most tokens in one forward pass, padding and attention masks included. Where memory runs "
        "out it is halved until the node starts again; the gradient stays the same. Several ranks "
        "stop instead.",
        **within(1, unit="tokens"),
    )
    gradient_checkpointing: bool = key(
        False,
        "Keep only each layer's input for the backward pass and compute the rest again: far less "
        "memory for a third more time. The gradient stays the same.",
    )
    max_completion_tokens: int = key(
        4096,
        "Longer completions of this node are trained on up to here; those of peers are dropped.",
        **within(1, unit="tokens"),
    )
    max_grad_norm: float = key(1.0, "Gradients are scaled down to this norm.", gt=0)
    warmup_steps: int = key(
        0, "Steps over which the learning rate rises from 0.", unit="steps", ge=0
    )
    stale: Literal["mask_tokens", "mask_sequences", "clamp"] = key(
        "mask_tokens",
        'Own tokens that the policy has moved away from (schedule.mode = "async") are weighed by '
        'importance, up to "importance_cap". Beyond it "mask_tokens" drops a token, '
        '"mask_sequences" a completion by the geometric mean of its tokens, "clamp" none.',
    )
    importance_cap: float = key(5.0, 'Upper bound of that weight (see "stale").', gt=0)
    proximal_policy: Literal["start", "versions"] = key(
        "start",
        'What own stale tokens are clipped against: "start", the policy that a step begins with, '
        'or "versions", a mean of that and the one that wrote them, by their age.',
    )


class MixtureSection(Section):
    """The composition of an update."""

    local: int = key(2, "Own groups in an update.", unit="groups", ge=0, le=4096)
    external: int = key(
        6,
        "Groups that the swarm spares this node: missing ones are replaced by own. 0: take none.",
        **within(0, 4096, "groups"),
    )
    select: str = kind_key(
        SELECTIONS,
        "auto",
        'How many external groups an update takes, among those whose rewards differ: "uniform" '
        'takes "external" of them; "auto" fills the update up to "target_groups", and takes less '
        "where their authors do worse on them than this policy would.",
    )
    select_options: Options = options_key("select")
    target_groups: int = key(
        12,
        'Groups whose rewards differ, own and external, that "auto" fills an update up to.',
        **within(1, 4096, "groups"),
    )
    correction: str = kind_key(
        CORRECTIONS,
        "better",
        'Of external groups: "none" treats them as self-generated; "tis" weighs their tokens by '
        "importance, at most 1, where their author's log-probs fit this tokenizer; "
        '"tapered" lets an answer worse than its group\'s mean, a token of a better one, and a '
        "group as a whole count only as far as this policy might have written them; "
        '"better" does so with better answers and does not read worse ones.',
    )
    correction_options: Options = options_key("correction")
    filters: Refusals = key(
        ("overlong", "repeating", "trailing", "copied"),
        "Right answers of others that are not imitated: much longer than this node's own on such "
        "tasks, running in circles, going on behind the answer, or sent by another author before; "
        'and "unlikely" ones, of tokens that this policy would hardly write, which may be what a '
        "far stronger peer has to teach.",
    )
    peer_ratio: float = key(
        4.0,
        "Peers' right answers raise a token to at most this multiple of its probability under the "
        "model that the node began with, times what local right answers gained, or to 5%; beyond "
        "it only local answers do. A style that peers choose therefore stays rare. It costs a "
        "forward pass of their answers and, without lora_rank, a copy of the model. Peers in "
        "trusted are exempt. 0: no limit.",
        **within(0, 1000),
    )
    author_share: float = key(
        0.25,
        "Most of an update's groups that one author's may be; one group always may.",
        gt=0,
        le=1,
    )
    unproven_share: float = key(
        0.25,
        "Most of an update's groups, and of a full pool, that all authors together may have whose "
        "groups have not yet proved useful here; one group always may.",
        gt=0,
        le=1,
    )
    trusted: Texts = key(
        (),
        "Peers whose groups neither of these shares limits, by their whole ids: one such peer may "
        "fill an update. swarm-node trust adds others while the node runs. What they send is "
        "verified and limited in size and time like anything else.",
    )
    max_uses: int = key(
        1,
        "Updates that an external group may be part of. Above 1, used ones fill what unused ones "
        "leave free.",
        **within(1, 64, "updates"),
    )
    successes: int = key(
        0,
        "Right answers, own ones and those of groups that were taken, that are kept for each "
        "question. Where an own group has no reward at all, one of them takes the place of one of "
        "its answers in the update, weighed by importance; what is shared stays what the policy "
        "wrote. They are kept in memory, and a node that starts again has none. 0: none.",
        **within(0, 64, "answers"),
    )
    semi_online: int = key(
        0,
        "Groups an update has besides, of tasks that others have solved in an environment: this "
        "policy plays them once more, held to their best trajectory. They are not shared. 0: none.",
        **within(0, 64, "groups"),
    )
    patches: int = key(
        1,
        "Most turns of the other's trajectory that take the place of own ones which depart from it "
        '(see "semi_online"); after so many the policy goes its own way.',
        **within(0, 32, "turns"),
    )
    max_age: float = key(
        600.0, "Age beyond which an external group is dropped.", unit="seconds", gt=0
    )
    pool_groups: int = key(
        1024, "Most external groups kept; the oldest go first.", unit="groups", ge=1, le=1_000_000
    )
