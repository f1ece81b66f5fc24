"""Where else the records of a node may go."""

from __future__ import annotations

import io
import logging
from abc import ABC, abstractmethod
from contextlib import redirect_stdout
from hashlib import sha256
from typing import Any, ClassVar, Literal

from node.config.schema import Section, key
from node.errors import NodeError
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder


class Logger(ABC):
    """Takes one record a round, from one thread; each has a file in ``loggers/``.

    Args:
        folder: of the run, for what it keeps there.
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, a table of ``monitor.loggers_options`` under its name; None: none.
        package: what it needs beside the project's own requirements; empty: nothing.

    Raises:
        NodeError: what it needs is not here.
    """

    Options: ClassVar[type[Section] | None] = None
    package: ClassVar[str] = ""

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        self.folder = folder
        self.options = options

    @abstractmethod
    def write(self, record: RoundRecord) -> None:
        """Take one record."""

    @abstractmethod
    def close(self) -> None:
        """Flush and release; harmless when called twice."""


def figures(record: RoundRecord) -> dict[str, float]:
    """Every figure of a record by the name that all loggers give it; refusals as
    ``refused/<reason>``."""
    refused = {f"refused/{reason}": float(count) for reason, count in record.refused.items()}
    return record.scalars() | refused


def run_name(folder: RunFolder) -> str:
    """What a run is called among others: its folder's name, and a mark of the whole path."""
    whole = folder.root.resolve()
    return f"{whole.name}-{sha256(str(whole).encode()).hexdigest()[:8]}"


log = logging.getLogger(__name__)


class Trackio(Logger):
    """Writes every figure of the record to Trackio's data base, by round.

    ``trackio show --project swarm-node`` opens its dashboard. Nothing leaves the machine unless
    Trackio's own variables (``TRACKIO_SPACE_ID``, ``TRACKIO_SERVER_URL``) say so.

    Raises:
        NodeError: the package is not installed.
    """

    package = "trackio"

    class Options(Section):
        """Where the run goes."""

        project: str = key("swarm-node", "The project.", min_length=1)
        run: str = key("", "Name of the run. None: the run folder's, and a mark of its path.")

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        super().__init__(folder, options)
        try:
            import trackio
        except ImportError as error:
            raise NodeError(
                f"monitor.loggers: trackio needs a package that is missing ({error})",
                None,
                "Install it with: pip install 'swarm-node[trackio]', or take it out.",
            ) from error
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
        """Add the record's figures at its round; Trackio has a time of its own."""
        told = {name: value for name, value in figures(record).items() if name != "time"}
        self._run.log(told, step=record.round)

    def close(self) -> None:
        """Hand on what is still under way."""
        if self._run is not None:
            _quietly(self._finish)
            self._run = None


def _quietly(call: Any, **arguments: Any) -> Any:
    """What Trackio prints goes to the log, for the terminal is the node's."""
    with redirect_stdout(io.StringIO()) as said:
        result = call(**arguments)
    log.info("trackio: %s", said.getvalue().strip())
    return result


class Wandb(Logger):
    """Sends every figure of the record to a W&B run, by round, or keeps it to be sent later.

    No other file or output of the node is sent, nor what the machine is. A run that resumes goes on
    in the same W&B run.

    Raises:
        NodeError: the package is not installed, or nobody is logged in.
    """

    package = "wandb"

    class Options(Section):
        """Where the run goes."""

        project: str = key("swarm-node", "The project.", min_length=1)
        run: str = key("", "Name of the run. None: the run folder's, and a mark of its path.")
        mode: Literal["online", "offline"] = key(
            "online", '"offline" writes into wandb/ of the run folder, for: wandb sync.'
        )

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        super().__init__(folder, options)
        try:
            import wandb
        except ImportError as error:
            raise NodeError(
                f"monitor.loggers: wandb needs a package that is missing ({error})",
                None,
                "Install it with: pip install 'swarm-node[wandb]', or take it out.",
            ) from error
        if self.options.mode == "online" and not wandb.login(prompt=False):
            raise NodeError(
                "monitor.loggers: nobody is logged in to wandb here",
                None,
                "Type wandb login, or set monitor.loggers_options.wandb.mode = 'offline'.",
            )
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
        # By round and not by W&B's own step, which never goes back as rounds done again do.
        self._run.define_metric("*", step_metric="round")

    def write(self, record: RoundRecord) -> None:
        """Add the record's figures at its round."""
        self._run.log(figures(record))

    def close(self) -> None:
        """Hand on what is still under way."""
        if self._run is not None:
            self._run.finish()
            self._run = None


class TensorBoard(Logger):
    """Writes every figure of the record to event files, by round.

    A run that resumes hides what an earlier process wrote of rounds that are done again.

    Raises:
        NodeError: the package is not installed.
    """

    package = "tensorboard"

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        super().__init__(folder, options)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise NodeError(
                f"monitor.loggers: tensorboard needs a package that is missing ({error})",
                None,
                "Install it with: pip install 'swarm-node[tensorboard]', or take it out.",
            ) from error
        self._open = SummaryWriter
        self._writer: Any = None

    def write(self, record: RoundRecord) -> None:
        """Add the record's figures at its round."""
        if self._writer is None:
            self._writer = self._open(str(self.folder.tensorboard), purge_step=record.round)
        for name, value in figures(record).items():
            self._writer.add_scalar(name, value, record.round, walltime=record.time)

    def close(self) -> None:
        """Flush to disk."""
        if self._writer is not None:
            self._writer.close()
