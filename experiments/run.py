"""Plan of an experiment, and execution of its missing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.arms import Arm
from experiments.folder import ExperimentFolder
from experiments.measures import Recordings
from experiments.regimes import EQUAL, Regime
from experiments.settings import Configuration, Settings
from experiments.setups import ORIGIN, Base
from experiments.workers import Job, WorkerPool
from node.config.config import Config
from node.engines.kinds import kind_of
from node.errors import UsageError
from node.threads import cores
from swarm.common.util import counted


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs of one experiment."""

    settings: Settings
    arms: tuple[Arm, ...]  # with unique names
    seeds: tuple[int, ...]
    workers: int = 0  # parallel processes; 0: one per core
    regimes: tuple[Regime, ...] = (EQUAL,)

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) < len(names):
            raise UsageError("--mix", ", ".join(names) or "none", "Name each mix once.")

    @property
    def runs(self) -> list[Configuration]:
        """Return the runs seed by seed, so that an interrupted experiment has whole comparisons."""
        return [
            Configuration(arm, seed, regime)
            for regime in self.regimes
            for seed in self.seeds
            for arm in self.arms
        ]


def run_missing(plan: Plan, root: Path, console: Console) -> ExperimentFolder:
    """Run what is missing and return the complete folder.

    Args:
        console: shows the progress.

    Raises:
        NodeError: the folder holds another experiment, an arm's engine cannot run here, or a worker
            died.
    """
    folder = ExperimentFolder(root)
    folder.open(plan.settings)
    missing = folder.missing(plan.runs)
    if done := len(plan.runs) - len(missing):
        # Their results are not those of code that has changed since, such as a package's plugin.
        kept = f"{counted(done, 'finished run')} of {len(plan.runs)}"
        console.print(f"{kept} in {folder.runs}; delete them to repeat them", markup=False)
    for arm in {run.arm.name: run.arm for run in missing}.values():
        check_engine(arm)
    size = plan.workers or cores()
    jobs = [
        Job(str(folder.root), plan.settings, run.seed, run.arm, run.regime.name) for run in missing
    ]
    with WorkerPool(size, folder.log) as pool, _progress(console) as progress:
        if plan.settings.makes_bases:
            _do(pool, progress, "base policies", _bases(plan, folder, missing), rounds=1)
        _do(pool, progress, "rounds", jobs, rounds=plan.settings.rounds)
    return folder


def check_engine(arm: Arm) -> None:
    """Raise ConfigError if this machine cannot run the arm's engine."""
    kind_of(Config.with_overrides(arm.overrides)).check()


def read_runs(plan: Plan, folder: ExperimentFolder, regime: Regime) -> Recordings:
    runs = [run for run in plan.runs if run.regime == regime]
    return {(run.arm.name, run.seed): folder.read(run) for run in runs}


def _bases(plan: Plan, folder: ExperimentFolder, missing: Sequence[Configuration]) -> list[Job]:
    """Return one job for all missing base policies that share an origin."""
    wanted: dict[tuple[int, str], dict[Base, None]] = {}
    for run in missing:
        for kind in run.bases(plan.settings):
            if not folder.has_base(kind, run.seed):
                wanted.setdefault((run.seed, ORIGIN.get(kind, kind)), {})[kind] = None
    return [
        Job(str(folder.root), plan.settings, seed, bases=tuple(kinds))
        for (seed, _), kinds in wanted.items()
    ]


def _do(
    pool: WorkerPool, progress: Progress, title: str, jobs: Sequence[Job], *, rounds: int
) -> None:
    if not jobs:
        return
    task = progress.add_task(title, total=rounds * len(jobs))
    done: dict[str, int] = {}
    ended: set[str] = set()

    def say(line: str) -> None:
        """Print a line if the console shows no progress bar."""
        if not progress.console.is_terminal:
            progress.console.print(line, markup=False)

    def update(job: Job, count: int, finished: bool) -> None:
        done[job.title] = rounds if finished else count
        progress.update(task, completed=sum(done.values()), description=f"{title} ({job.title})")
        if finished:
            ended.add(job.title)
            say(f"{title}: {len(ended)} of {len(jobs)}, {job.title}")

    say(f"{title}: {len(jobs)} to do")
    pool.do(jobs, update)
    progress.update(task, description=title)


def _progress(console: Console) -> Progress:
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)
