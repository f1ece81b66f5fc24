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
        'Peer-to-peer stack: "hivemind" starts a daemon process and can relay for others; "libp2p" '
        "(the default on Windows; needs the extra libp2p) does neither. Both can connect.",
    )
    transport_options: Options = options_key("transport")
    listen: Texts = key(
        ("/ip4/0.0.0.0/tcp/0",),
        "Multiaddresses to listen on. Port 0 selects a free port, and again the same if it is "
        "free; set a fixed port to open it in a firewall.",
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
        "Announce this node on its local networks by multicast DNS, and dial announced members of "
        "its swarm. Anyone on these networks can read the peer id, the swarm and the port. A node "
        "without a swarm joins the one that it finds.",
    )
    swarm: str = key(
        "",
        "Id of the swarm to join: 64 hex digits, or at least the first 8. Only all protect against "
        "an imitation. Peers of other swarms are refused. Empty: the swarm of the first peer.",
        pattern=r"^([0-9a-f]{8,64})?$",
    )
    start_timeout: float = key(
        60.0, "Timeout for the start of the network.", unit="seconds", gt=0, le=3600
    )
    work_seconds: float = key(
        600.0,
        "Maximum expected time of the proof of work at a start; above it, the node stays out.",
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
        "Name that peers may show next to the peer id, not verified: up to 48 characters. With a "
        "name or a line, members also receive the model's name and the version of this program.",
    )
    line: str = key("", "One line about this node in lists of peers: up to 160 characters.")


class EngineSection(Section):
    """How completions are sampled."""

    backend: str = kind_key(
        ENGINES,
        "transformers",
        'Rollout engine: "transformers" samples with the policy itself, "vllm" runs vLLM in a '
        "separate process (needs the extra vllm; without a GPU: make vllm).",
    )
    backend_options: Options = options_key("backend")
    temperature: float = key(1.0, "Sampling temperature in training.", ge=0.001, le=10)
    max_new_tokens: int = key(
        64, "Maximum tokens of a completion.", unit="tokens", ge=1, le=1_000_000
    )
    max_turns: int = key(
        8,
        "Maximum turns in an environment, which share max_new_tokens; then it is truncated.",
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
        "Fraction of each GPU's memory for vLLM's weights and KV cache; a learner on the same GPU "
        "needs the rest. Without a GPU: 1 GiB, or the environment's VLLM_CPU_KVCACHE_SPACE GiB.",
        gt=0,
        le=1,
    )
    sleep_mode: bool = key(
        False,
        "Pause generation during an update and free the engine's memory, for a GPU that both "
        "share. Without a GPU, vLLM keeps its memory.",
    )
    timeout: float = key(
        300.0,
        "Maximum time without a message from a busy engine process, which is then replaced. A "
        "step, the longest prefill and an update must take less; a start may take half an hour.",
        **within(5, 86_400, "seconds"),
    )


class TasksSection(Section):
    """The tasks to train on, from the swarm's task set."""

    weights: dict[str, Annotated[float, Field(ge=0)]] = key(
        {}, "Sampling weight of each task family, by name; others get none. Empty: equal weights."
    )
    levels: dict[str, list[Annotated[int, Field(ge=0)]]] = key(
        {},
        "Difficulty levels of each family to train on and evaluate, by name, from 0: { products "
        "= [0, 1] }. Families that are not named keep all their levels.",
    )
    curriculum: str = kind_key(
        CURRICULA,
        "auto",
        'Choice of tasks: "uniform" samples families by weight and levels evenly. "thompson" '
        'prefers levels that this policy solves sometimes but not always. "skill" also assumes '
        'that no level is easier than those below it. "auto": "skill" from six levels, else '
        '"uniform".',
    )
    curriculum_options: Options = options_key("curriculum")
    files: dict[str, Annotated[str, Field(min_length=1)]] = key(
        {},
        "Files of the task set's jsonl families and environments, by name, relative to this file.",
    )
    allow_code_execution: Texts = key(
        (), "Families, by name, whose verifier may evaluate the text of completions as code."
    )


class SandboxSection(Section):
    """Access of your own tasks from the verifier sandbox."""

    read: dict[str, Texts] = key(
        {}, "Files and folders, relative to this file, that a task may read, by its name."
    )
    network: Texts = key((), "Names of the tasks that may use the network.")


class ScheduleSection(Section):
    """The order and length of the run's phases."""

    mode: Literal["auto", "sync", "async"] = key(
        "auto",
        'Order of generation and updates: "sync" is in turn, "async" at the same time, in two '
        'processes. "auto" is "async" with engine.backend = "vllm", else "sync".',
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
        "Above 0, generation pauses during an update, for a device that both share.",
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
        "Checkpoints of the best held-out rewards, written when measured, to keep in addition.",
        **within(0, 1000, "checkpoints"),
    )


class MonitorSection(Section):
    """Reports of the node. JSON lines are always written to the run folder."""

    metrics_mib: int = key(
        64,
        "Maximum size of metrics.jsonl. A full file keeps every 2nd of the older rounds, every "
        "4th of still older ones, and so on; it covers the whole run.",
        **within(1, 1 << 20, "MiB"),
    )
    live: bool = key(True, "Show a live panel if the output is a terminal.")
    dashboard: bool | str = key(
        True,
        "Address of the dashboard and its JSON: true is 127.0.0.1, port 8710 or the next free one; "
        'port 0 of "host:port" selects a free one. An address that other machines can reach '
        "requires the token that the node prints.",
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
        "", "Folder (relative to this file) to which bootstrap and observe write that page."
    )
    loggers: Texts = kind_key(
        LOGGERS,
        (),
        'Additional loggers, each with the extra of its name: "tensorboard" (event files of '
        'unlimited size in the run folder), "trackio", "wandb".',
    )
    loggers_options: dict[str, Options] = key({}, "Options of the loggers, a table for each name.")
    log_level: Literal["debug", "info", "warning", "error"] = key(
        "info", "Minimum level of the messages in node.log."
    )
