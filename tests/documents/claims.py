"""Commands that the walk skips, with reasons, and results that documents claim."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from node.monitor.history import read_records
from tests.documents.page import commands

ROOT = "as root, in the machine's own folders"
HUB = "needs a model that is fetched from the hub"
VLLM = "needs an environment with vLLM in it: make test-vllm"
HOURS = "takes hours; --quick is the same in small"
TWICE = "another page has it too, where it is run"
REAL = "needs a real model and minutes of training: make test-real"
ITSELF = "a part of what runs this, or hours of it"
SMALL = "takes minutes; tests/node/test_own_kinds.py does it in small"
LAN = "shows this machine to its network; tests/routers does it in networks of its own"

GPU = "measures a GPU; tests/test_gpu_benchmark.py runs what needs none"
QWEN = ("swarm-node plan Qwen/", "swarm-node init --model Qwen/", "swarm-node join --config gpu ")
VLLM_ALONE = {"make vllm": VLLM, ".venv-vllm/bin/swarm-node ": VLLM, "make bench-gpu": GPU}
AS_ROOT = ("useradd ", "python3 -m venv /opt/", "install -d -o swarm", "sudo ")

LEFT_OUT = {
    "README.md": {
        "make ": ITSELF,
        **dict.fromkeys((". .venv/", "swarm-node demo", "swarm-node join --peers"), TWICE),
        **dict.fromkeys(("swarm-node init --model Qwen/", "swarm-node join --config my-"), HUB),
    },
    "CONTRIBUTING.md": {"make ": ITSELF},
    "docs/quickstart.md": {"sudo ": ROOT, "make ": ITSELF},
    "docs/guides/gpu_and_vllm.md": VLLM_ALONE | dict.fromkeys(QWEN, HUB),
    "docs/guides/nat.md": {"swarm-node join --config lan-node --lan": LAN},
    "docs/guides/public_swarm.md": dict.fromkeys(AS_ROOT, ROOT),
    "docs/guides/real_model.md": dict.fromkeys(
        ("make ", "python -m install.", "swarm-node "), REAL
    ),
    "docs/gpu_code.md": {"make bench-gpu": GPU},
    "examples/own_selection/README.md": {"python -m experiments sapo --quick --rounds": SMALL},
    "examples/tiny_model/README.md": {
        "python -m experiments make-models": "takes ten minutes and overwrites the models"
    },
    **{
        f"experiments/reports/{name}.md": {"python -m experiments ": HOURS}
        for name in ("README", "games", "long_answers", "methods", "regimes", "sapo")
    },
}
"""Reasons by page and then by command prefix; several commands may share a prefix."""


def reason(page: str, command: str) -> str | None:
    """Return why a command of a page is skipped, or None if it runs."""
    told = LEFT_OUT.get(page, {})
    return next((why for begin, why in told.items() if command.startswith(begin)), None)


def remaining(page: str, script: str) -> str:
    """Return the part of a block that the walk runs; "" if only assignments remain."""
    typed = [command for command in commands(script) if not reason(page, command)]
    if typed == commands(script):
        return script
    if all("=" in command.split()[0] for command in typed):
        return ""
    return "\n".join(typed) + "\n"


FEW = 5
"""Rounds to average at the start and the end, because single rewards are noisy."""


def rewards_of(folder: Path, of: str) -> list[float]:
    found = (getattr(each, of) for each in read_records(folder))
    return [reward for reward in found if reward is not None]


def own_reward_rises(folder: Path) -> str:
    rewards = rewards_of(folder / "mine", "reward_local")
    first, last = fmean(rewards[:FEW]), fmean(rewards[-FEW:])
    return "" if first < 0.3 and last > 0.75 else f"reward went from {first:.2f} to {last:.2f}"


def held_out_reward_passes_one_half(folder: Path) -> str:
    rewards = rewards_of(folder / "sorter", "reward_eval")
    good = rewards[0] < 0.05 and max(rewards) > 0.5
    return "" if good else f"held-out reward went from {rewards[0]:.2f} to {max(rewards):.2f}"


CLAIMS: dict[str, Callable[[Path], str]] = {
    "swarm-node join --config mine ": own_reward_rises,
    "swarm-node join --config sorter ": held_out_reward_passes_one_half,
}
"""Checks by prefix of a command that ends by itself; each returns a fault or ""."""

FAILS = {"torchrun ": r"done; run the same command to resume(.|\n)*SignalException"}
"""Prefixes of commands that must exit with status 1, and their output pattern."""
