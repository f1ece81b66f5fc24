"""Config sections: node, network, profile, engine, tasks, sandbox, schedule, monitor.

The keys' texts are only here and in :mod:`node.config.learning`; the reference is generated.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from pydantic import Field

from node.config.registry import CURRICULA, ENGINES, LOGGERS, TRANSPORTS, kind_key, options_key
from node.config.schema import Options, Section, Texts, key, within


class NodeSection(Section):
    """This node and where it keeps its state."""

    name: str = key(
        "node",
        "Display name of this node: 1 to 40 letters, digits, spaces, dots, hyphens and "
        "underscores. Peers identify a node by its key, so the name need not be unique.",
        pattern=r"^[\w .-]{1,40}$",
    )
    run_dir: str = key(
        ".", "Run folder, relative to this file: key, journal, checkpoints and logs.", min_length=1
    )
    seed: int = key(
        0,
        "Random seed of sampling and choices. A new node derives it from its key.",
        ge=0,
        lt=2**63,
    )
    threads: int = key(
        0,
        "Threads of torch in each process; 0 measures powers of two at the start and keeps the "
        "fastest. Set 1 if several nodes share the cores.",
        **within(0, 1024),
    )


class NetworkSection(Section):
    """How this node connects to its peers."""

    transport: str = kind_key(
        TRANSPORTS,
        "libp2p" if sys.platform == "win32" else "hivemind",
        'Peer-to-peer stack. Both can connect to each other. "hivemind" starts a daemon process '
        'and can relay for others. "libp2p" does neither (needs the extra: swarm-node[libp2p]); '
        "it is the default on Windows.",
    )
    transport_options: Options = options_key("transport")
    listen: Texts = key(
        ("/ip4/0.0.0.0/tcp/0",),
        "Multiaddresses to listen on. Port 0 selects a free port; set a fixed port to open it "
        "in a firewall.",
        min_length=1,
    )
    announce_maddrs: Texts = key(
        (), "Multiaddresses that peers should dial, if they differ from listen (NAT, cloud)."
    )
    peers: Texts = key(
        (),
        "Peers to dial first, as /ip4/…/tcp/…/p2p/…, /dns4/…/tcp/…/p2p/… or /dnsaddr/…/p2p/…. "
        "Empty: start alone and wait for peers.",
    )
    relay: Literal["auto", "off"] = key(
        "auto",
        'Relaying for a node behind a router. With "auto", peers try to dial the node; if they '
        "cannot, up to three of them relay for it until a direct connection succeeds.",
    )
    lan: bool = key(
        False,
        "Announce this node on its local networks by multicast DNS, and dial the members of its "
        "swarm that are announced there. The announcement has the peer id, the swarm and the "
        "port, and anyone on these networks can read it. A node without a swarm joins the one "
        "that it finds.",
    )
    swarm: str = key(
        "",
        "Id of the swarm to join: 64 hex digits, or at least the first 8. The node refuses "
        "peers of another swarm. Only the full id protects against a swarm made with the same "
        "first digits. Empty: stay with the swarm of the first peer.",
        pattern=r"^([0-9a-f]{8,64})?$",
    )
    start_timeout: float = key(
        60.0, "Timeout for the start of the network.", unit="seconds", gt=0, le=3600
    )
    work_seconds: float = key(
        600.0,
        "Maximum expected time of a swarm's proof of work, at each start. Above it, the node "
        "does not join.",
        **within(0, 1e9, "seconds"),
    )
    gossip_peers: int = key(
        3, "Random peers to ask for recent announcements in each time slot.", ge=0, le=64
    )
    pulls_per_epoch: int = key(
        16, "Maximum frames to pull from peers in each time slot.", unit="frames", ge=0, le=4096
    )
    upload_mib_per_s: float = key(
        8.0, "Maximum upload rate to peers.", unit="MiB per second", gt=0, le=100_000
    )


class ProfileSection(Section):
    """Public description of this node. Without name and line, the node sends none."""

    name: str = key(
        "",
        "Name that peers may show next to the peer id: up to 48 characters of any script. It "
        "need not be unique, and it is not verified. With a name or a line, members also "
        "receive the model's name (the last part of a folder) and the version of this program.",
    )
    line: str = key(
        "",
        "One line about this node for the people who see it in their list of peers: up to "
        "160 characters.",
    )


class EngineSection(Section):
    """How completions are sampled."""

    backend: str = kind_key(
        ENGINES,
        "transformers",
        'Rollout engine: "transformers" samples with the policy itself, "vllm" runs vLLM in a '
        "separate process (needs the extra: swarm-node[vllm]; on a machine without a GPU: make "
        "vllm).",
    )
    backend_options: Options = options_key("backend")
    temperature: float = key(1.0, "Sampling temperature in training.", ge=0.001, le=10)
    max_new_tokens: int = key(
        64, "Maximum tokens of a completion.", unit="tokens", ge=1, le=1_000_000
    )
    max_turns: int = key(
        8,
        "Maximum turns of the policy in an environment; a longer trajectory is truncated. All "
        "turns together have max_new_tokens.",
        **within(1, 32, "turns"),
    )
    max_turn_tokens: int = key(
        0,
        "Maximum tokens of a turn. 0: max_new_tokens divided by max_turns.",
        **within(0, 1_000_000, "tokens"),
    )
    group_size: int = key(8, "Completions per task.", unit="completions", ge=2, le=1024)
    tensor_parallel_size: int = key(
        1, "GPUs per vLLM process, over which vLLM splits the model.", unit="GPUs", ge=1, le=64
    )
    data_parallel_size: int = key(
        1,
        "vLLM processes, each with its own GPUs and its own part of the completions.",
        **within(1, 64, "processes"),
    )
    gpu_memory_utilization: float = key(
        0.4,
        "Fraction of each GPU's memory for vLLM's weights and KV cache; the learner needs the "
        "rest if it is on the same GPU. Without a GPU the cache has at most 1 GiB, or "
        "VLLM_CPU_KVCACHE_SPACE (an environment variable) in GiB.",
        gt=0,
        le=1,
    )
    sleep_mode: bool = key(
        False,
        "Pause generation during an update and free the engine's memory, for a GPU that both "
        "share. vLLM sleeps and takes its memory again afterwards; without a GPU it keeps its "
        "memory.",
    )
    timeout: float = key(
        300.0,
        "Maximum time without a message from a busy engine process; after that the node kills "
        "and replaces it. A step, the prefill of the longest prompts and a weight update must "
        "each take less. A start may always take half an hour.",
        **within(5, 86_400, "seconds"),
    )


class TasksSection(Section):
    """The tasks to train on, from the swarm's task set."""

    weights: dict[str, Annotated[float, Field(ge=0)]] = key(
        {},
        "Sampling weight of each task family, by name; families that are not named get "
        "none. Empty: equal weights.",
    )
    levels: dict[str, list[Annotated[int, Field(ge=0)]]] = key(
        {},
        "Difficulty levels of each family to train on and evaluate, by name, from 0: { products "
        "= [0, 1] }. Families that are not named keep all their levels.",
    )
    curriculum: str = kind_key(
        CURRICULA,
        "auto",
        'Choice of the next tasks: "uniform" samples families by weight and their levels '
        'evenly. "thompson" prefers levels that this policy probably solves sometimes but not '
        'always. "skill" also assumes that no level is easier than the levels below it. "auto" '
        'is "skill" for a family with six levels or more, else "uniform".',
    )
    curriculum_options: Options = options_key("curriculum")
    files: dict[str, Annotated[str, Field(min_length=1)]] = key(
        {},
        "Local files of the task set's jsonl families and environments, by name, relative to "
        "this file.",
    )
    allow_code_execution: Texts = key(
        (),
        "Families, by name, whose verifier may evaluate the text of completions as code. No "
        "other family needs this.",
    )


class SandboxSection(Section):
    """Access of your own tasks from the verifier sandbox."""

    read: dict[str, Texts] = key(
        {},
        "Files and folders that a task may read, by its name and relative to this file, in "
        "addition to its imports.",
    )
    network: Texts = key((), "Names of the tasks that may use the network.")


class ScheduleSection(Section):
    """The order and length of the run's phases."""

    mode: Literal["auto", "sync", "async"] = key(
        "auto",
        'Order of generation and updates: "sync" runs them in turn. "async" generates in a '
        'separate process during the update. "auto" is "async" with engine.backend = "vllm" and '
        '"sync" with "transformers".',
    )
    max_staleness: int = key(
        1,
        "Maximum updates between the start of a local group and the update that uses it "
        '("async"). 0: generate each update\'s groups just before it.',
        **within(0, 64, "updates"),
    )
    oversample: float = key(
        0.0,
        'Extra groups to generate beyond those of an update, as a fraction of them ("async"). '
        "Above 0, generation pauses during an update and then resumes its unfinished groups, "
        "for a device that both share.",
        **within(0, 64),
    )
    rounds: int = key(
        0,
        "Total rounds, including earlier runs in this folder. 0: until stopped.",
        **within(0, unit="rounds"),
    )
    eval_every: int = key(10, "Rounds between evaluations on held-out tasks.", unit="rounds", ge=1)
    eval_tasks: int = key(64, "Held-out tasks in an evaluation.", unit="tasks", ge=1, le=100_000)
    checkpoint_every: int = key(
        10,
        "Rounds between checkpoints; the node also writes one at the end.",
        **within(1, unit="rounds"),
    )
    keep_checkpoints: int = key(2, "Newest checkpoints to keep.", unit="checkpoints", ge=1, le=1000)
    keep_best: int = key(
        1,
        "Checkpoints with the best held-out reward to keep in addition. The node writes a "
        "checkpoint whenever an evaluation finds the best policy so far.",
        **within(0, 1000, "checkpoints"),
    )


class MonitorSection(Section):
    """Reports of the node. JSON lines are always written to the run folder."""

    metrics_mib: int = key(
        64,
        "Maximum size of metrics.jsonl. When the file is full, the node keeps every 2nd of the "
        "older rounds, every 4th of still older ones, and so on. The file always covers the "
        "whole run.",
        **within(1, 1 << 20, "MiB"),
    )
    live: bool = key(True, "Show a live panel if the output is a terminal.")
    dashboard: bool | str = key(
        True,
        "Address of the dashboard and its JSON: true serves it on 127.0.0.1, port 8710 or the next "
        'free one. "host:port" serves it only there; port 0 selects a free port. On an address '
        "that other machines can reach, the page requires the token in the printed address.",
        values='true, false or "host:port"',
    )
    public: str = key(
        "",
        "Address at which `swarm-node bootstrap` and `observe` serve the page of the whole "
        "swarm to everyone. The bootstrap node then verifies a sample of the shared groups, at "
        "most network.pulls_per_epoch frames per time slot.",
        values='"" (nowhere) or "host:port"',
    )
    snapshot: str = key(
        "",
        "Folder to which both commands also write that page, relative to this file, as files "
        "for any web host. Empty: none.",
    )
    loggers: Texts = kind_key(
        LOGGERS,
        (),
        'Additional loggers: "tensorboard" writes event files of unlimited size into the run '
        'folder, "trackio" writes to a Trackio project, "wandb" to Weights & Biases. Each needs '
        "the extra of its name: swarm-node[tensorboard].",
    )
    loggers_options: dict[str, Options] = key({}, "Options of the loggers, a table for each name.")
    log_level: Literal["debug", "info", "warning", "error"] = key(
        "info", "Minimum level of the messages in node.log."
    )
