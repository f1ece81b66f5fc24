"""``python -m experiments``: every arm under every seed, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments import chart, tables
from experiments.arms import Arm
from experiments.bases import ORIGIN, Base
from experiments.folder import ExperimentFolder
from experiments.jobs import Job
from experiments.measures import Recordings, Summary, summarise
from experiments.regimes import EQUAL, Regime
from experiments.settings import Configuration, Settings
from experiments.worker_pool import WorkerPool
from node.config.config import Config
from node.engines.kinds import kind_of
from node.errors import UsageError
from node.storage.atomic_files import write_atomic
from node.threads import cores


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for.

    Attributes:
        settings: of every run.
        arms: names are unique.
        seeds: of each arm.
        workers: processes side by side; 0: one for each core.
        regimes: in which every arm is run.
    """

    settings: Settings
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    workers: int = 0
    regimes: tuple[Regime, ...] = (EQUAL,)

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) < len(names):
            raise UsageError("--mix", ", ".join(names) or "none", "Name each mix once.")

    @property
    def runs(self) -> list[Configuration]:
        """Seed by seed, so that an experiment broken off has whole comparisons."""
        return [
            Configuration(arm, seed, regime)
            for regime in self.regimes
            for seed in self.seeds
            for arm in self.arms
        ]


def run(plan: Plan, root: Path, console: Console) -> tuple[Summary, ...]:
    """Do what is missing in ``root``, see :func:`done`; write results, table and chart there."""
    return report(plan, done(plan, root, console))


def done(plan: Plan, root: Path, console: Console) -> ExperimentFolder:
    """The folder with every run of the plan in it: those that were missing are done.

    Args:
        console: shows how far it is.

    Raises:
        NodeError: the folder holds another experiment, an arm wants an engine that this machine
            has not what it takes for, or a worker died.
    """
    folder = ExperimentFolder(root)
    folder.open(plan.settings)
    missing = folder.missing(plan.runs)
    for arm in {run.arm.name: run.arm for run in missing}.values():
        check_engine(arm)
    size = plan.workers or cores()
    jobs = [
        Job(str(folder.root), plan.settings, run.seed, run.arm, run.regime.name) for run in missing
    ]
    with WorkerPool(size, folder.log) as crew, _progress(console) as progress:
        if plan.settings.makes_bases:
            _do(crew, progress, "base policies", _bases(plan, folder, missing), rounds=1)
        _do(crew, progress, "rounds", jobs, rounds=plan.settings.rounds)
    return folder


def check_engine(arm: Arm) -> None:
    """Look whether this machine has what the arm's engine takes.

    Raises:
        ConfigError: it has not.
    """
    kind_of(Config.with_overrides(arm.overrides)).check()


def report(plan: Plan, folder: ExperimentFolder) -> tuple[Summary, ...]:
    """Fold the runs of the equal regime and write results, table and chart."""
    nodes = EQUAL.judged(plan.settings.nodes)
    recordings = read(plan, folder, EQUAL)
    summaries = summarise(plan.arms, recordings, nodes)
    write_atomic(folder.results, tables.results(plan.settings, summaries).encode())
    write_atomic(folder.table, tables.markdown(plan.settings, summaries).encode())
    chart.draw(summaries, recordings, nodes, folder.chart)
    return summaries


def read(plan: Plan, folder: ExperimentFolder, regime: Regime) -> Recordings:
    """The runs in one regime."""
    runs = [run for run in plan.runs if run.regime == regime]
    return {(run.arm.name, run.seed): folder.read(run) for run in runs}


def _bases(plan: Plan, folder: ExperimentFolder, missing: Sequence[Configuration]) -> list[Job]:
    """One job for all that branch off from one origin."""
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
    crew: WorkerPool, progress: Progress, title: str, jobs: Sequence[Job], *, rounds: int
) -> None:
    if not jobs:
        return
    task = progress.add_task(title, total=rounds * len(jobs))
    done: dict[str, int] = {}
    ended: set[str] = set()

    def say(line: str) -> None:
        """Where there is no bar to be seen."""
        if not progress.console.is_terminal:
            progress.console.print(line, markup=False)

    def tell(job: Job, count: int, finished: bool) -> None:
        done[job.title] = rounds if finished else count
        progress.update(task, completed=sum(done.values()), description=f"{title} ({job.title})")
        if finished:
            ended.add(job.title)
            say(f"{title}: {len(ended)} of {len(jobs)}, {job.title}")

    say(f"{title}: {len(jobs)} to do")
    crew.do(jobs, tell)
    progress.update(task, description=title)


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)
