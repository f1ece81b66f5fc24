"""Records as TensorBoard event files."""

from __future__ import annotations

from typing import Any

from node.errors import NodeError
from node.monitor.logger import Logger, figures
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder


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
