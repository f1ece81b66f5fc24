"""What ``torchrun`` starts twice for the section ``ranks``: updates of one learner over both.

Rank 0 writes what it measured into the file that it is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from node.config.config import Config
from node.config.learning import LearnerSection
from node.distributed.ranks import Ranks
from node.distributed.sharded_learner import follow, open_learner
from node.distributed.torchrun import Launch
from on_gpu.machine import forget_peak, peak_gb, typical
from on_gpu.models import random_groups, random_policy
from on_gpu.section import Row, Settings

RATE = 1e-6


def lead(settings: Settings, ranks: Ranks | None) -> Row:
    """Updates with the ranks, or alone where there are none."""
    policy = random_policy(settings, settings.sizes[0])
    prompt, count, length = (16, 2, 16) if settings.smoke else (128, 4, 512)
    groups = random_groups(policy, count, 4, prompt, length)
    forget_peak(settings.device)
    learner = open_learner(policy, LearnerSection(lr=RATE, groups_per_step=0), ranks)
    norm = learner.update(groups).grad_norm
    once = typical(lambda: learner.update(groups), settings.device, 1 if settings.smoke else 3)
    return {
        "what": "alone" if ranks is None else "two ranks",
        "gradient_norm": norm,
        "update_s": round(once, 3),
        "peak_gb": peak_gb(settings.device),
    }


def main(out: Path, settings: Settings) -> None:
    launch = Launch.read()
    assert launch is not None, "this is started by torchrun"
    launch.check(Config.with_overrides({"policy.device": settings.device.partition(":")[0]}))
    with Ranks(launch) as ranks:
        if ranks.is_main:
            rows = [lead(settings, ranks), lead(settings, None)]
            out.write_text(json.dumps(rows), encoding="utf-8")
        else:
            follow(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Settings(sys.argv[2], smoke=sys.argv[3] == "smoke"))
