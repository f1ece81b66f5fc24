"""The tables of a node's TOML file.

Every key carries its description, default, unit and limits here and nowhere else: the file that
``swarm-node init`` writes and ``docs/configuration.md`` are both made from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

Texts = Annotated[tuple[Annotated[str, Strict()], ...], Strict(False)]


def _key(default: Any, about: str, *, unit: str = "", **limits: Any) -> Any:
    return Field(default, description=about, json_schema_extra={"unit": unit}, **limits)


class Section(BaseModel):
    """A table of the file: unknown keys, wrong types and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class NodeSection(Section):
    """This node and where it keeps its state."""

    name: str = _key(
        "node",
        "What people see this node called. Peers are told by key, so it need not be unique.",
        pattern=r"^[\w .-]{1,40}$",
    )
    run_dir: str = _key(
        ".",
        "Run folder: key, journal, checkpoints and logs. Relative to this file.",
        min_length=1,
    )
    seed: int = _key(0, "Seeds sampling and the choice of groups.", ge=0, lt=2**63)
    threads: int = _key(
        0,
        "Threads for torch, in each process that uses it. 0 tries doublings at the start and keeps "
        "what is fastest; set 1 when several nodes share the cores.",
        ge=0,
        le=1024,
    )


class NetworkSection(Section):
    """How this node meets its peers."""

    transport: Literal["hivemind"] = _key("hivemind", "The peer-to-peer stack.")
    listen: Texts = _key(
        ("/ip4/0.0.0.0/tcp/0",),
        "Multiaddresses to listen on. Port 0 takes any free port; name one to open a firewall for.",
        min_length=1,
    )
    announce: Texts = _key(
        (), "Multiaddresses that others should dial, where they differ from `listen` (NAT, cloud)."
    )
    peers: Texts = _key(
        (),
        "Peers to dial first, each as /ip4/…/tcp/…/p2p/…. None: start alone and wait to be found.",
    )
    relay: bool = _key(
        False, "Be reachable through other peers when this machine takes no connection (NAT)."
    )
    swarm: str = _key(
        "",
        "Id of the swarm to join, as 64 hex digits; a peer offering another is refused. "
        "Empty: take the first peer's and stay with it.",
        pattern=r"^([0-9a-f]{64})?$",
    )
    start_timeout: float = _key(
        60.0, "How long the network may take to start.", unit="seconds", gt=0, le=3600
    )
    gossip_peers: int = _key(
        3, "Random peers asked for recent announcements each epoch.", ge=0, le=64
    )
    pulls_per_epoch: int = _key(
        16, "Most frames pulled from others each epoch.", unit="frames", ge=0, le=4096
    )
    upload_mib_per_s: float = _key(
        8.0, "Most that is served to others.", unit="MiB a second", gt=0, le=100_000
    )


class PolicySection(Section):
    """The model that is trained."""

    model: str = _key(
        "tiny",
        'A folder, a hub id, or one of the shipped models "tiny" and "tiny-wide". '
        "A relative folder is looked for beside this file.",
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = _key(
        "float32", "Number format of the weights."
    )
    device: str = _key(
        "auto",
        '"auto" takes a GPU when there is one; or "cpu", "cuda", "cuda:1", "mps".',
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
    )


class EngineSection(Section):
    """How completions are sampled."""

    kind: Literal["transformers", "vllm"] = _key(
        "transformers",
        'The rollout engine: "transformers" samples with the policy itself, "vllm" with vLLM in a '
        "process of its own (needs the extra: swarm-node[vllm]; on a machine without a GPU: "
        "make vllm).",
    )
    temperature: float = _key(1.0, "Sampling temperature in training.", gt=0, le=10)
    max_new_tokens: int = _key(64, "Length cap of a completion.", unit="tokens", ge=1, le=1_000_000)
    group_size: int = _key(8, "Completions for each task.", unit="completions", ge=2, le=1024)
    tensor_parallel: int = _key(
        1, "GPUs that vLLM splits the model over.", unit="GPUs", ge=1, le=64
    )
    data_parallel: int = _key(
        1,
        "vLLMs beside each other, each with its own GPUs and its own share of the completions.",
        unit="processes",
        ge=1,
        le=64,
    )
    gpu_memory: float = _key(
        0.4,
        "Share of each GPU's memory that vLLM takes for weights and cache; the learner needs the "
        "rest where it is on the same one. Without a GPU the cache takes at most 1 GiB, or the "
        "GiB in the environment variable VLLM_CPU_KVCACHE_SPACE.",
        gt=0,
        le=1,
    )


class TasksSection(Section):
    """What is practised, out of the swarm's catalogue."""

    weights: dict[str, Annotated[float, Field(ge=0)]] = _key(
        {}, "Share of each family, by name; families not named get none. Empty: all alike."
    )
    curriculum: Literal["uniform", "thompson"] = _key(
        "uniform",
        '"uniform" draws families by weight and their levels evenly; "thompson" favours levels '
        "that this policy is believed to solve sometimes but not always.",
    )
    files: dict[str, Annotated[str, Field(min_length=1)]] = _key(
        {}, "Local files of the catalogue's jsonl families, by name. Relative to this file."
    )


class MixtureSection(Section):
    """What an update is made of."""

    local: int = _key(2, "Own groups in an update.", unit="groups", ge=0, le=4096)
    external: int = _key(
        6,
        "Groups that the swarm spares this node: missing ones are replaced by own. 0: take none.",
        unit="groups",
        ge=0,
        le=4096,
    )
    select: Literal["uniform", "auto"] = _key(
        "auto",
        'How many external groups an update takes, among those whose rewards differ: "uniform" '
        'takes "external" of them; "auto" fills the update up to "informative".',
    )
    informative: int = _key(
        12,
        'Groups whose rewards differ, own and external, that "auto" fills an update up to.',
        unit="groups",
        ge=1,
        le=4096,
    )
    correction: Literal["none", "tis", "tapered"] = _key(
        "tapered",
        'Of external groups: "none" treats them as self-generated; "tis" weighs their tokens by '
        "truncated importance where their author's log-probs fit this tokenizer; "
        '"tapered" lets an answer worse than its group\'s mean count only as far as this policy '
        "would write it.",
    )
    max_uses: int = _key(
        1,
        "Updates that an external group may be part of. Above 1, used ones fill what unused ones "
        "leave free.",
        unit="updates",
        ge=1,
        le=64,
    )
    max_age: float = _key(
        600.0, "Age beyond which an external group is dropped.", unit="seconds", gt=0
    )
    pool_groups: int = _key(
        1024, "Most external groups kept; the oldest go first.", unit="groups", ge=1, le=1_000_000
    )


class LearnerSection(Section):
    """How the policy is updated."""

    loss: Literal["grpo", "dr_grpo", "gspo", "cispo"] = _key("grpo", "The policy loss.")
    clip_low: float = _key(0.2, "How far the ratio may fall below 1.", ge=0, le=1)
    clip_high: float = _key(0.28, "How far the ratio may rise above 1.", ge=0)
    lr: float = _key(
        3e-4,
        "Learning rate of AdamW. The default suits the tiny models; take 1e-6 for models of half "
        "a billion parameters and more.",
        gt=0,
        le=1,
    )
    betas: Annotated[tuple[Annotated[float, Strict()], ...], Strict(False)] = _key(
        (0.9, 0.99), "AdamW's two decay rates.", min_length=2, max_length=2
    )
    weight_decay: float = _key(0.0, "AdamW's weight decay.", ge=0)
    epochs: int = _key(1, "Passes over each update's groups.", ge=1, le=64)
    micro_batch_tokens: int = _key(
        8192,
        "Most tokens in one forward pass, padding and attention masks included. Lower it when "
        "memory runs out; the gradient stays the same.",
        unit="tokens",
        ge=1,
    )
    max_completion_tokens: int = _key(
        4096,
        "Longer completions, such as a peer's, are trained on up to here.",
        unit="tokens",
        ge=1,
    )
    max_grad_norm: float = _key(1.0, "Gradients are scaled down to this norm.", gt=0)
    warmup_steps: int = _key(
        0, "Steps over which the learning rate rises from 0.", unit="steps", ge=0
    )
    normalise_std: bool = _key(
        True, "Divide a group's advantages by the standard deviation of its rewards."
    )
    tis_cap: float = _key(
        2.0, 'Upper bound of an importance weight (mixture.correction = "tis").', gt=0
    )
    stale: Literal["mask_tokens", "mask_sequences", "clamp"] = _key(
        "mask_tokens",
        'Own tokens that the policy has moved away from (schedule.mode = "overlap") are weighed by '
        'importance, up to "stale_cap". Beyond it "mask_tokens" drops a token, "mask_sequences" '
        'a completion by the geometric mean of its tokens, "clamp" none.',
    )
    stale_cap: float = _key(5.0, 'Upper bound of that weight (see "stale").', gt=0)
    prox: Literal["start", "versions"] = _key(
        "start",
        'What own stale tokens are clipped against: "start", the policy that an update begins '
        'with, or "versions", a mean of that and the one that wrote them, by their age.',
    )


class ScheduleSection(Section):
    """What happens when."""

    mode: Literal["alternate", "overlap"] = _key(
        "alternate",
        '"alternate": generate, then update, in turn. "overlap": generate in a process of its own '
        "while the policy learns.",
    )
    max_staleness: int = _key(
        1,
        'Most updates between the begin of an own group and the one that takes it ("overlap"). 0: '
        "begin and take each update's groups in turn.",
        unit="updates",
        ge=0,
        le=64,
    )
    over_provision: float = _key(
        0.0,
        'Groups that run beyond those an update needs, as a share of them ("overlap"). Above 0, '
        "generation stands still while the policy learns, and goes on with what was unfinished: "
        "for a device that both share.",
        ge=0,
        le=64,
    )
    rounds: int = _key(
        0,
        "Rounds in all, earlier runs in this folder included. 0: until stopped.",
        unit="rounds",
        ge=0,
    )
    eval_every: int = _key(
        10, "Evaluate on held-out tasks every so many rounds.", unit="rounds", ge=1
    )
    eval_tasks: int = _key(64, "Held-out tasks in an evaluation.", unit="tasks", ge=1, le=100_000)
    checkpoint_every: int = _key(
        10,
        "Write a checkpoint every so many rounds; one is also written at the end.",
        unit="rounds",
        ge=1,
    )


class MonitorSection(Section):
    """What the node shows of itself. JSON lines are always written to the run folder."""

    live: bool = _key(True, "A live panel, where the output is a terminal.")
    prometheus_port: int = _key(
        0, "Port of the Prometheus metrics on this machine (127.0.0.1). 0: none.", ge=0, le=65535
    )
    tensorboard: bool = _key(
        False, "Write TensorBoard event files (needs the extra: swarm-node[tensorboard])."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _key(
        "info", "Least important messages that go to node.log."
    )
