"""What many turns cost: tokens a second of trajectories in an environment, against one long answer.

As many completions of as many tokens are written in one turn, in several turns that an environment
answers at once, and in several that it answers after some waiting, as a tool that asks something
does. All of it goes through a node's player and a verifier's workers; the three take turns, and
ratios are medians of what was measured within one. A turn ends at its length, and is taken to have
ended by itself. Run it as
``python benchmarks/turns.py [--engine vllm] [--wait 0.05] [--steps 4] [--turns 5]``.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from options import parser
from output import show

from node import threads

ECHO = """
class Echo:
    replayable = True

    def reset(self, seed: int, *, steps: int = 4) -> str:
        self.left = steps
        return f"question {seed % 100000}: "

    def step(self, action: str) -> tuple[str, bool]:
        self.left -= 1
        return "higher", not self.left

    def reward(self) -> float:
        return 1.0
"""
SLOW = """
import asyncio


class Slow:
    replayable = True

    def reset(self, seed: int, *, steps: int = 4, wait: float = 0.0) -> str:
        self.left, self.wait = steps, wait
        return f"question {seed % 100000}: "

    async def step(self, action: str) -> tuple[str, bool]:
        await asyncio.sleep(self.wait)
        self.left -= 1
        return "higher", not self.left

    def reward(self) -> float:
        return 1.0
"""
TASK_SET = """
[[env]]
name = "echo"
source = "environment"
file = "echo.py"
template = "{question}"
extract = "text"
levels = [{ steps = 1 }, { steps = %d }]

[[env]]
name = "slow"
source = "environment"
file = "slow.py"
template = "{question}"
extract = "text"
levels = [{ steps = %d, wait = %f }]
"""
SIDES = {"one_turn": ("echo", 0), "many_turns": ("echo", 1), "waiting": ("slow", 0)}


def measure(options: argparse.Namespace, stack: ExitStack) -> list[dict[str, float]]:
    """Tokens a second of each side, one row a turn."""
    from bare import seconds
    from policies import endless_policy

    from node.config.config import Config
    from node.engines.engine import Sample, Sampling
    from node.engines.registry import open_engine
    from node.tasks.task_set import Allowed, load_task_set
    from node.tasks.verifier.verifier import Verifier
    from node.trajectories.player import Player
    from node.trajectories.trajectory import TurnLimits
    from protocol.rollout import Finish
    from swarm.common.counters import Counters
    from swarm.groups import TaskRef

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    files = {"echo": folder / "echo.py", "slow": folder / "slow.py"}
    files["echo"].write_text(ECHO)
    files["slow"].write_text(SLOW)
    task_set = folder / "echo.toml"
    task_set.write_text(TASK_SET % (options.steps, options.steps, options.wait))
    verifier = stack.enter_context(
        Verifier(load_task_set(str(task_set)), Allowed(files), outside=False)
    )
    verifier.start()
    policy = endless_policy(options.model)
    config = Config.model_validate({"engine": {"backend": options.engine}})
    engine: Any = open_engine(config, policy, Counters())
    stack.callback(engine.close)

    class Stopping:
        """The engine, whose turns have all ended by themselves."""

        submit, abort, nudge = engine.submit, engine.abort, engine.nudge

        def poll(self, seconds: float, stream: int) -> list[tuple[int, Sample]]:
            written = engine.poll(seconds, stream)
            return [(key, replace(each, finish=Finish.STOP)) for key, each in written]

    def speed(side: str, number: int) -> float:
        turns = 1 if side == "one_turn" else options.steps
        limits = TurnLimits(turns + 1, options.tokens // turns, 2 * options.tokens)
        player = Player(policy, Stopping(), verifier, limits)  # type: ignore[arg-type]
        refs = [TaskRef(*SIDES[side], 1000 * number + task) for task in range(options.prompts)]
        prompts = [policy.encode_prompt(text) for text in verifier.prompts(refs)]
        sampling = Sampling(max_new_tokens=options.tokens)
        written: list[Any] = []
        took = seconds(
            lambda: written.extend(player.play(refs, prompts, options.completions, sampling))
        )
        return sum(len(each.tokens.ids) for group in written for each in group) / took

    rows = [{side: speed(side, turn) for side in SIDES} for turn in range(1 + options.turns)]
    return rows[1:]


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(turns=5)
    arguments.add_argument("--steps", type=int, default=4, help="turns of a trajectory")
    arguments.add_argument("--wait", type=float, default=0.05, help="seconds of a slow tool")
    options = arguments.parse_args()
    threads.choose(options.threads)
    with ExitStack() as stack:
        rows = measure(options, stack)
    found: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("engine", "model", "prompts", "completions", "tokens", "steps", "wait")
    }
    found |= {f"{side}_tokens_s": round(median(row[side] for row in rows)) for side in SIDES}
    found["many_over_one"] = round(median(r["many_turns"] / r["one_turn"] for r in rows), 2)
    found["waiting_over_many"] = round(median(r["waiting"] / r["many_turns"] for r in rows), 2)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
