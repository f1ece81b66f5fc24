"""The tables of what happens when, and of what is shown of it.

As with the other tables, in :mod:`node.config.sections`, every key is described here alone.
"""

from __future__ import annotations

from typing import Literal

from node.config.base import Options, Section, Texts, key
from node.config.kinds import LOGGERS, kind_key


class ScheduleSection(Section):
    """What happens when."""

    mode: Literal["auto", "alternate", "overlap"] = key(
        "auto",
        '"alternate": generate, then update, in turn. "overlap": generate in a process of its own '
        'while the policy learns. "auto": overlap with engine.kind = "vllm", alternate with '
        '"transformers".',
    )
    max_staleness: int = key(
        1,
        'Most updates between the begin of an own group and the one that takes it ("overlap"). 0: '
        "begin and take each update's groups in turn.",
        unit="updates",
        ge=0,
        le=64,
    )
    over_provision: float = key(
        0.0,
        'Groups that run beyond those an update needs, as a share of them ("overlap"). Above 0, '
        "generation stands still while the policy learns, and goes on with what was unfinished: "
        "for a device that both share.",
        ge=0,
        le=64,
    )
    rounds: int = key(
        0,
        "Rounds in all, earlier runs in this folder included. 0: until stopped.",
        unit="rounds",
        ge=0,
    )
    eval_every: int = key(
        10, "Evaluate on held-out tasks every so many rounds.", unit="rounds", ge=1
    )
    eval_tasks: int = key(64, "Held-out tasks in an evaluation.", unit="tasks", ge=1, le=100_000)
    checkpoint_every: int = key(
        10,
        "Write a checkpoint every so many rounds; one is also written at the end.",
        unit="rounds",
        ge=1,
    )
    keep_checkpoints: int = key(
        2, "Newest checkpoints that are kept.", unit="checkpoints", ge=1, le=1000
    )
    keep_best: int = key(
        1,
        "Checkpoints of the best held-out reward that are kept beside them. A policy that an "
        "evaluation finds to be the best is written even where none is due.",
        unit="checkpoints",
        ge=0,
        le=1000,
    )


class MonitorSection(Section):
    """What the node shows of itself. JSON lines are always written to the run folder."""

    metrics_mib: int = key(
        64,
        "Largest size of metrics.jsonl. When it is full, older rounds are thinned: every 2nd "
        "stays, of older ones every 4th, and so on. The file goes on spanning the whole run.",
        unit="MiB",
        ge=1,
        le=1 << 20,
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
        "Where `swarm-node seed` and `watch` serve the page of the whole swarm to everybody, as "
        '"host:port"; the seed then checks a sample of what is shared, network.pulls_per_epoch '
        "frames an epoch at the most.",
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
        'Where else records go: "tensorboard" writes event files into the run folder, where '
        'nothing bounds them, "trackio" into a project of Trackio, "wandb" to Weights & Biases. '
        "Each needs the extra of its name: swarm-node[tensorboard].",
    )
    loggers_options: dict[str, Options] = key(
        {}, "Settings of those loggers that have any of their own, a table for each name."
    )
    log_level: Literal["debug", "info", "warning", "error"] = key(
        "info", "Least important messages that go to node.log."
    )
