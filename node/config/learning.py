"""The config sections of the model, the learner and the batch composition."""

from __future__ import annotations

from typing import Literal

from node.config.registry import ADVANTAGES, CORRECTIONS, LOSSES, SELECTIONS, kind_key, options_key
from node.config.schema import DecayRates, Filters, Options, Section, Texts, key, within


class PolicySection(Section):
    """The model to train."""

    model: str = key(
        "tiny",
        "Model to train: a folder (may be relative to this file), a Hugging Face model id, or a "
        'shipped model: "tiny", "tiny-wide", "tiny-working" or "tiny-games".',
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = key(
        "float32", "Number format of the weights."
    )
    device: str = key(
        "auto",
        'Device of the policy: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" or "mps".',
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
    )
    lora_rank: int = key(
        0,
        "Rank of the low-rank adapters (LoRA; needs the extra lora), which alone are trained, in "
        "far less memory and with a higher learner.lr. 0: train all weights.",
        **within(0, 1024),
    )
    lora_alpha: int = key(
        32, "LoRA scaling: the adapters' output is multiplied by lora_alpha / lora_rank.", ge=1
    )
    lora_targets: Texts = key(
        (),
        'Linear layers that get an adapter, by the end of their names: ["q_proj", "v_proj"]. '
        "Empty: all of the decoder.",
    )
    chat_template_kwargs: Options = key(
        {},
        "Keyword arguments of the chat template, such as { enable_thinking = false } with "
        "Qwen3. Set the same on all nodes that should have the same prompts.",
    )


class LearnerSection(Section):
    """How the policy is updated."""

    loss: str = kind_key(LOSSES, "grpo", "The policy loss.")
    loss_options: Options = options_key("loss")
    advantage: str = kind_key(
        ADVANTAGES,
        "grpo",
        "Advantage from a group's rewards: the reward minus the group's mean, divided by the "
        'standard deviation ("grpo") or not ("dr_grpo").',
    )
    advantage_options: Options = options_key("advantage")
    clip_low: float = key(
        0.2,
        "Lower clip range: the ratio is clipped below 1 - clip_low. It is 1 at the start of a "
        'step, so this needs epochs above 1, or proximal_policy = "versions".',
        **within(0, 1),
    )
    clip_high: float = key(
        0.28, "Upper clip range: the ratio is clipped above 1 + clip_high.", ge=0
    )
    optimizer: Literal["adamw", "adamw8bit"] = key(
        "adamw",
        'Optimizer: "adamw" keeps two float32 values per trained weight, "adamw8bit" two bytes '
        "(needs the extra adamw8bit).",
    )
    offload: bool = key(
        False,
        "Keep optimizer state, gradients and float32 weights in main memory and run the optimizer "
        "there. The GPU then holds only the weights during generation, but updates take longer.",
    )
    lr: float = key(
        3e-4,
        "Learning rate of AdamW, by the number of parameters: 3e-4 below 10 million, 3e-5 below "
        "100 million, 2e-5 below 200 million, 1e-5 below 400 million, else 1e-6; with lora_rank "
        "ten times as much, at most 3e-4. swarm-node plan and init --model follow this rule.",
        gt=0,
        le=1,
    )
    betas: DecayRates = key((0.9, 0.99), "Beta coefficients of AdamW.", min_length=2, max_length=2)
    weight_decay: float = key(0.0, "Weight decay of AdamW.", ge=0)
    epochs: int = key(1, "Passes over each update's groups.", ge=1, le=64)
    groups_per_step: int = key(
        3,
        "Informative groups, local and peer, per optimizer step. 0: one step for all groups.",
        **within(0, 4096, "groups"),
    )
    micro_batch_tokens: int = key(
        8192,
        "Maximum tokens in one forward pass, including padding and attention masks. If memory "
        "runs out, the node halves it until the next start, or stops if it has several ranks.",
        **within(1, unit="tokens"),
    )
    gradient_checkpointing: bool = key(
        False,
        "Keep only each layer's input for the backward pass and compute the rest again: less "
        "memory, a third more time, the same gradient.",
    )
    max_completion_tokens: int = key(
        4096,
        "Maximum completion length in training. Longer local completions are truncated; longer "
        "completions of peers are dropped.",
        **within(1, unit="tokens"),
    )
    max_grad_norm: float = key(
        1.0, "Maximum gradient norm; larger gradients are scaled down to it.", gt=0
    )
    warmup_steps: int = key(
        0, "Steps over which the learning rate rises from 0 to lr.", unit="steps", ge=0
    )
    stale: Literal["mask_tokens", "mask_sequences", "clamp"] = key(
        "mask_tokens",
        'Treatment of local tokens that an older policy sampled (schedule.mode = "async"). They '
        'are weighted by importance. Above "importance_cap", "mask_tokens" drops the token, '
        '"mask_sequences" the completion by the geometric mean of its tokens, "clamp" nothing.',
    )
    importance_cap: float = key(5.0, 'Maximum importance weight (see "stale").', gt=0)
    proximal_policy: Literal["start", "versions"] = key(
        "start",
        'Policy to which stale local tokens are clipped: "start" is that at the start of the step, '
        '"versions" its mean with the one that sampled the tokens, weighted by their age.',
    )


class MixtureSection(Section):
    """The composition of an update."""

    local: int = key(2, "Local groups in an update.", unit="groups", ge=0, le=4096)
    external: int = key(
        6,
        "Local groups that peer groups replace in an update, if peers send as many. 0: no peers.",
        **within(0, 4096, "groups"),
    )
    select: str = kind_key(
        SELECTIONS,
        "auto",
        'Number of informative peer groups in an update: "uniform" takes "external" of them. '
        '"auto" fills the update up to "target_groups", and takes fewer if their authors score '
        "lower on these tasks than this policy would, or if they take longer than local ones.",
    )
    select_options: Options = options_key("select")
    target_groups: int = key(
        12,
        'Informative groups, local and peer, up to which "auto" fills an update.',
        **within(1, 4096, "groups"),
    )
    correction: str = kind_key(
        CORRECTIONS,
        "better",
        'Off-policy correction of peer groups. "none" treats them like local groups. "tis" '
        "weights tokens by importance, at most 1, if the author's log-probs fit this tokenizer. "
        '"tapered" reduces the weight of worse completions, of tokens of better ones, and of '
        'groups that this policy is unlikely to sample. "better" also skips worse completions.',
    )
    correction_options: Options = options_key("correction")
    filters: Filters = key(
        ("overlong", "repeating", "trailing", "copied"),
        'Correct completions of peers that the node does not learn from: "overlong" (much longer '
        'than local ones), "repeating" (loops), "trailing" (text after the answer), "copied" (sent '
        'by another author earlier), "unlikely" (very improbable here; a much stronger peer?).',
    )
    peer_ratio: float = key(
        3.0,
        "Maximum factor by which peers' correct completions raise a token's probability, relative "
        "to the initial model and what local ones gained, or up to 5%; doubled for several tokens "
        "together. It keeps a style that peers choose rare, for a forward pass and, without "
        "lora_rank, a copy of the model. Peers in trusted are exempt. 0: no limit.",
        **within(0, 1000),
    )
    author_share: float = key(
        0.25,
        "Maximum fraction of an update from one author. One group is always allowed.",
        gt=0,
        le=1,
    )
    unproven_share: float = key(
        0.25,
        "Maximum fraction of an update, and of a full replay buffer, from all unproven authors "
        "together: those whose groups have not yet helped here. One group is always allowed.",
        gt=0,
        le=1,
    )
    trusted: Texts = key(
        (),
        "Whole ids of peers that author_share and unproven_share do not limit; all other limits "
        "apply. One may fill an update. swarm-node trust adds others to a running node.",
    )
    max_uses: int = key(
        1,
        "Maximum updates that use one peer group. Above 1, used groups fill free places.",
        **within(1, 64, "updates"),
    )
    max_age: float = key(
        600.0, "Maximum age of a peer group; older ones are dropped.", unit="seconds", gt=0
    )
    pool_groups: int = key(
        1024,
        "Maximum peer groups in the replay buffer; the oldest are removed first.",
        unit="groups",
        ge=1,
        le=1_000_000,
    )
