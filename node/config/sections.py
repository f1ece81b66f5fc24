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
        "What people see this node called, in 1 to 40 letters, digits, blanks, dots, hyphens and "
        "underscores. Peers are identified by key, so it need not be unique.",
        pattern=r"^[\w .-]{1,40}$",
    )
    run_dir: str = key(
        ".", "Run folder: key, journal, checkpoints and logs. Relative to this file.", min_length=1
    )
    seed: int = key(
        0, "Seeds sampling and choices; a new node's follows from its key.", ge=0, lt=2**63
    )
    threads: int = key(
        0,
        "Threads for torch, in each process that uses it. 0 tries doublings at the start and keeps "
        "what is fastest; set 1 when several nodes share the cores.",
        **within(0, 1024),
    )


class NetworkSection(Section):
    """How this node connects to its peers."""

    transport: str = kind_key(
        TRANSPORTS,
        "libp2p" if sys.platform == "win32" else "hivemind",
        'The peer-to-peer stack; both speak to each other. "hivemind" has a daemon beside it and '
        'relays for others; "libp2p" does neither (needs the extra: swarm-node[libp2p]) and is the '
        "default on Windows.",
    )
    transport_options: Options = options_key("transport")
    listen: Texts = key(
        ("/ip4/0.0.0.0/tcp/0",),
        "Multiaddresses to listen on. Port 0 takes any free port; name one to open a firewall for.",
        min_length=1,
    )
    announce_maddrs: Texts = key(
        (), "Multiaddresses that others should dial, where they differ from `listen` (NAT, cloud)."
    )
    peers: Texts = key(
        (),
        "Peers to dial first, each as /ip4/…/tcp/…/p2p/… or with a name, /dns4/…/tcp/…/p2p/… or "
        "/dnsaddr/…/p2p/…. None: start alone and wait to be found.",
    )
    relay: Literal["auto", "off"] = key(
        "auto",
        "How a node behind a router is reached: with auto its peers try to dial it, and where they "
        "cannot, up to three of them relay for it until a direct connection is made.",
    )
    lan: bool = key(
        False,
        "Announce this node on its local networks by multicast DNS, with its peer id, its swarm "
        "and its port, and dial the members of its swarm that are announced there. A node of no "
        "swarm yet joins the one that it finds so. It tells everybody there what this machine is.",
    )
    swarm: str = key(
        "",
        "Id of the swarm to join, as 64 hex digits or the first 8 or more of them; a peer offering "
        "another is refused. Only all 64 keep out whoever makes a swarm whose id begins alike. "
        "Empty: take the first peer's and stay with it.",
        pattern=r"^([0-9a-f]{8,64})?$",
    )
    start_timeout: float = key(
        60.0, "How long the network may take to start.", unit="seconds", gt=0, le=3600
    )
    work_seconds: float = key(
        600.0,
        "Expected time of a swarm's proof of work, at each start, above which the node does not "
        "join.",
        **within(0, 1e9, "seconds"),
    )
    gossip_peers: int = key(
        3, "Random peers asked for recent announcements each epoch.", ge=0, le=64
    )
    pulls_per_epoch: int = key(
        16, "Most frames pulled from others each epoch.", unit="frames", ge=0, le=4096
    )
    upload_mib_per_s: float = key(
        8.0, "Most that is served to others.", unit="MiB a second", gt=0, le=100_000
    )


class ProfileSection(Section):
    """Public description of this node, for people to read. Without name and line, none is sent."""

    name: str = key(
        "",
        "What peers may show this node as, beside its peer id, in up to 48 characters of any "
        "script. It need not be unique, and nobody checks it. With a name or a line, members are "
        "also sent the model's name, of a folder the last part, and this program's version.",
    )
    line: str = key(
        "", "A line about this node, for whoever looks at its peers, in up to 160 characters."
    )


class EngineSection(Section):
    """How completions are sampled."""

    backend: str = kind_key(
        ENGINES,
        "transformers",
        'The rollout engine: "transformers" samples with the policy itself, "vllm" with vLLM in a '
        "process of its own (needs the extra: swarm-node[vllm]; on a machine without a GPU: "
        "make vllm).",
    )
    backend_options: Options = options_key("backend")
    temperature: float = key(1.0, "Sampling temperature in training.", ge=0.001, le=10)
    max_new_tokens: int = key(64, "Length cap of a completion.", unit="tokens", ge=1, le=1_000_000)
    max_turns: int = key(
        8,
        "Turns of the policy in an environment at most; a trajectory that would have more is cut. "
        "Its turns have max_new_tokens together.",
        **within(1, 32, "turns"),
    )
    max_turn_tokens: int = key(
        0,
        "Length cap of a turn. 0: max_new_tokens divided by max_turns.",
        **within(0, 1_000_000, "tokens"),
    )
    group_size: int = key(8, "Completions for each task.", unit="completions", ge=2, le=1024)
    tensor_parallel_size: int = key(
        1, "GPUs that vLLM splits the model over.", unit="GPUs", ge=1, le=64
    )
    data_parallel_size: int = key(
        1,
        "vLLMs beside each other, each with its own GPUs and its own share of the completions.",
        **within(1, 64, "processes"),
    )
    gpu_memory_utilization: float = key(
        0.4,
        "Share of each GPU's memory that vLLM takes for weights and cache; the learner needs the "
        "rest where it is on the same one. Without a GPU the cache takes at most 1 GiB, or the "
        "GiB in the environment variable VLLM_CPU_KVCACHE_SPACE.",
        gt=0,
        le=1,
    )
    sleep_mode: bool = key(
        False,
        "Stand still while the policy learns, and leave it the memory meanwhile: for a GPU that "
        "both share. vLLM sleeps then, and takes its memory back when it goes on; without a GPU it "
        "keeps it.",
    )
    timeout: float = key(
        300.0,
        "An engine's process that has something to do and says nothing for so long is killed, and "
        "another one goes on. A step, the reading of the longest prompts and a change of weights "
        "must each fit in. A start may always take half an hour.",
        **within(5, 86_400, "seconds"),
    )


class TasksSection(Section):
    """The tasks to train on, from the swarm's task set."""

    weights: dict[str, Annotated[float, Field(ge=0)]] = key(
        {}, "Share of each family, by name; families not named get none. Empty: all alike."
    )
    levels: dict[str, list[Annotated[int, Field(ge=0)]]] = key(
        {},
        "Levels of each family, from 0, that are trained on and evaluated, by name: "
        "{ products = [0, 1] }. Families not named keep all of theirs.",
    )
    curriculum: str = kind_key(
        CURRICULA,
        "auto",
        '"uniform" draws families by weight and their levels evenly; "thompson" favours levels '
        'that this policy is believed to solve sometimes but not always; "skill" also counts every '
        'level as no easier than those below it; "auto" is "skill" where a family has six levels '
        'or more, else "uniform".',
    )
    curriculum_options: Options = options_key("curriculum")
    files: dict[str, Annotated[str, Field(min_length=1)]] = key(
        {},
        "Local files of the task set's jsonl families and environments, by name. Relative to "
        "this file.",
    )
    allow_code_execution: Texts = key(
        (),
        "Families, by name, that this node opens though scoring them evaluates the text of "
        "answers. No other family needs this.",
    )


class SandboxSection(Section):
    """What tasks of your own may reach from the sandbox that scores answers."""

    read: dict[str, Texts] = key(
        {},
        "Files and folders that a task may read, by its name, in addition to what it imports. "
        "Relative to this file.",
    )
    network: Texts = key((), "Tasks, by name, that may use the network.")


class ScheduleSection(Section):
    """The order and length of the run's phases."""

    mode: Literal["auto", "sync", "async"] = key(
        "auto",
        '"sync": generate, then update, in turn. "async": generate in a separate process while '
        'the policy learns. "auto": async with engine.backend = "vllm", sync with "transformers".',
    )
    max_staleness: int = key(
        1,
        'Most updates between the begin of an own group and the one that takes it ("async"). 0: '
        "begin and take each update's groups in turn.",
        **within(0, 64, "updates"),
    )
    oversample: float = key(
        0.0,
        'Groups that run beyond those an update needs, as a share of them ("async"). Above 0, '
        "generation stands still while the policy learns, and goes on with what was unfinished: "
        "for a device that both share.",
        **within(0, 64),
    )
    rounds: int = key(
        0,
        "Rounds in all, earlier runs in this folder included. 0: until stopped.",
        **within(0, unit="rounds"),
    )
    eval_every: int = key(
        10, "Evaluate on held-out tasks every so many rounds.", unit="rounds", ge=1
    )
    eval_tasks: int = key(64, "Held-out tasks in an evaluation.", unit="tasks", ge=1, le=100_000)
    checkpoint_every: int = key(
        10,
        "Write a checkpoint every so many rounds; one is also written at the end.",
        **within(1, unit="rounds"),
    )
    keep_checkpoints: int = key(
        2, "Newest checkpoints that are kept.", unit="checkpoints", ge=1, le=1000
    )
    keep_best: int = key(
        1,
        "Checkpoints of the best held-out reward that are kept beside them. A policy that an "
        "evaluation finds to be the best is written even where none is due.",
        **within(0, 1000, "checkpoints"),
    )


class MonitorSection(Section):
    """What the node reports. JSON lines are always written to the run folder."""

    metrics_mib: int = key(
        64,
        "Largest size of metrics.jsonl. When it is full, older rounds are thinned: every 2nd "
        "stays, of older ones every 4th, and so on. The file goes on spanning the whole run.",
        **within(1, 1 << 20, "MiB"),
    )
    live: bool = key(True, "A live panel, where the output is a terminal.")
    dashboard: bool | str = key(
        True,
        "The page that shows this node in a browser, and the JSON behind it: true serves it on "
        '127.0.0.1, port 8710 or the next free one; "host:port" there and nowhere else, port 0 '
        "being any free one. On an address that others can reach it asks for the token in the "
        "address that is printed.",
        values='true, false or "host:port"',
    )
    public: str = key(
        "",
        "Where `swarm-node bootstrap` and `observe` serve the page of the whole swarm to "
        'everybody, as "host:port"; the bootstrap node then checks a sample of what is shared, at '
        "most network.pulls_per_epoch frames per epoch.",
        values='"" (nowhere) or "host:port"',
    )
    snapshot: str = key(
        "",
        "Folder that both write the same page to, as files for any web host. Relative to this "
        "file. Empty: none.",
    )
    prometheus_port: int = key(
        0, "Port of the Prometheus metrics on this machine (127.0.0.1). 0: none.", ge=0, le=65535
    )
    loggers: Texts = kind_key(
        LOGGERS,
        (),
        'Further destinations of the metrics: "tensorboard" writes event files into the run '
        'folder, where nothing bounds them, "trackio" into a project of Trackio, "wandb" to '
        "Weights & Biases. Each needs the extra of its name: swarm-node[tensorboard].",
    )
    loggers_options: dict[str, Options] = key(
        {}, "Settings of those loggers that have any of their own, a table for each name."
    )
    log_level: Literal["debug", "info", "warning", "error"] = key(
        "info", "Least important messages that go to node.log."
    )
