"""Drive a node from Python: ``python examples/drive_from_python.py [FOLDER ROUNDS]``.

The node trains the shipped tiny model, alone until somebody dials the address that it prints.
Run it again on the same folder, and it goes on from its last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from node.config.config import Config
from node.run.node import Node
from node.run.preflight import open_identity
from node.storage.run_folder import RunFolder


def main(folder: RunFolder, rounds: int) -> None:
    """Train for some rounds in ``folder``, and print the rewards of each."""
    settings = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "schedule.checkpoint_every": 5}
    config = Config.with_overrides(settings)
    open_identity(folder)
    with folder.locked(), Node(config, folder) as node:
        print("others join with: swarm-node join --peers", *node.membership.status().addresses)
        for _ in range(rounds):
            outcome = node.rounds.step()
            rewards = [sum(group.training.rewards) for group in outcome.local]
            print(
                f"round {outcome.round}: own groups scored {rewards}, "
                f"{len(outcome.external)} groups came from outside"
            )


if __name__ == "__main__":
    where, count = sys.argv[1:] or ("driven-run", "10")
    main(RunFolder(Path(where)), int(count))
