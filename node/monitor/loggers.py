"""Loggers: plugins that send each round's record to another tool."""

from __future__ import annotations

import io
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from typing import Any, ClassVar, Literal

from node.config.schema import Section, key
from node.errors import NodeError
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder

log = logging.getLogger(__name__)


class Logger(ABC):
    """A sink for one record per round, called from one thread.

    ``folder`` is the run folder, for files of the logger. ``options`` is an instance of
    ``Options``, which defines its table of ``monitor.loggers_options``; None if it has none.
    ``package`` is the one that it requires beyond the project's, or empty. Raises NodeError if that
    is missing.
    """

    Options: ClassVar[type[Section] | None] = None
    package: ClassVar[str] = ""

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        self.folder = folder
        self.options = options

    @abstractmethod
    def write(self, record: RoundRecord) -> None:
        """Log one record."""

    @abstractmethod
    def close(self) -> None:
        """Flush and release; may be called twice."""


def figures(record: RoundRecord) -> dict[str, float]:
    """Return every figure of a record by name; refusals as ``refused/<reason>``."""
    refusals = {f"refused/{reason}": float(count) for reason, count in record.refused.items()}
    return record.scalars() | refusals


def run_name(folder: RunFolder) -> str:
    """Return a run's name: its folder's name and a hash of the whole path."""
    path = folder.root.resolve()
    return f"{path.name}-{sha256(str(path).encode()).hexdigest()[:8]}"


@contextmanager
def _required(package: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        problem = f"monitor.loggers: {package} needs a package that is missing ({error})"
        remedy = f"Run pip install '.[{package}]' in the clone, or remove the logger."
        raise NodeError(problem, None, remedy) from error


class Trackio(Logger):
    """A logger that writes every figure to Trackio's database, by round.

    ``trackio show --project swarm-node`` opens it. Nothing leaves the machine unless you set
    ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL``. Raises NodeError without the package.
    """

    package = "trackio"

    class Options(Section):
        """Settings of the Trackio run."""

        project: str = key("swarm-node", "Name of the project.", min_length=1)
        run: str = key(
            "", "Name of the run. Empty: the name of the run folder and a hash of its path."
        )

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        super().__init__(folder, options)
        with _required("trackio"):
            import trackio
        self._finish: Any = trackio.finish
        self._run: Any = _quietly(
            trackio.init,
            project=self.options.project,
            name=self.options.run or run_name(folder),
            resume="allow",
            auto_log_cpu=False,
            auto_log_gpu=False,
            embed=False,
        )

    def write(self, record: RoundRecord) -> None:
        values = {name: value for name, value in figures(record).items() if name != "time"}
        self._run.log(values, step=record.round)

    def close(self) -> None:
        if self._run is not None:
            _quietly(self._finish)
            self._run = None


def _quietly(call: Any, **arguments: Any) -> Any:
    """Call Trackio and log its output, because the terminal belongs to the node."""
    with redirect_stdout(io.StringIO()) as output:
        result = call(**arguments)
    log.info("trackio: %s", output.getvalue().strip())
    return result


class Wandb(Logger):
    """A logger that sends every figure to a W&B run, by round, or stores it for later.

    It sends no other file, output or machine information. A run that resumes continues the same W&B
    run. Raises NodeError without the package or a login.
    """

    package = "wandb"

    class Options(Trackio.Options):
        """Settings of the W&B run."""

        mode: Literal["online", "offline"] = key(
            "online", '"offline" writes into wandb/ of the run folder; upload it with: wandb sync.'
        )

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        super().__init__(folder, options)
        with _required("wandb"):
            import wandb
        if self.options.mode == "online" and not wandb.login(prompt=False):
            remedy = "Run wandb login, or set monitor.loggers_options.wandb.mode = 'offline'."
            raise NodeError("monitor.loggers: no wandb login on this machine", None, remedy)
        name = self.options.run or run_name(folder)
        self._run: Any = wandb.init(
            project=self.options.project,
            name=name,
            id=name,
            resume="allow",
            dir=str(folder.root),
            mode=self.options.mode,
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, x_disable_meta=True
            ),
        )
        # W&B's own step cannot decrease; rounds that are repeated do.
        self._run.define_metric("*", step_metric="round")

    def write(self, record: RoundRecord) -> None:
        self._run.log(figures(record))

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


class TensorBoard(Logger):
    """A logger that writes every figure to event files, by round.

    A resumed run hides earlier figures of repeated rounds. Raises NodeError without the package.
    """

    package = "tensorboard"

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        super().__init__(folder, options)
        with _required("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._open = SummaryWriter
        self._writer: Any = None

    def write(self, record: RoundRecord) -> None:
        if self._writer is None:
            self._writer = self._open(str(self.folder.tensorboard), purge_step=record.round)
        for name, value in figures(record).items():
            self._writer.add_scalar(name, value, record.round, walltime=record.time)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
