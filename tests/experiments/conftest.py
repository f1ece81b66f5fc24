from collections.abc import Iterator

import pytest
import torch

from experiments.workers import Job, WorkerPool


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the jobs of an experiment in this process instead of in worker processes."""

    def do(crew: WorkerPool, jobs, progress) -> None:
        for job in jobs:
            Job.decode(job.encode()).do(lambda rounds: None)
            progress(job, 0, True)

    monkeypatch.setattr(WorkerPool, "do", do)
