"""Records in a run of Weights & Biases."""

from __future__ import annotations

from typing import Any, Literal

from node.config.base import Section, key
from node.errors import NodeError
from node.monitor.logger import Logger, figures, run_name
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder


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
