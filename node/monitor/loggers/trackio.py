"""Records in a Trackio project on this machine."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stdout
from typing import Any

from node.config.base import Section, key
from node.errors import NodeError
from node.monitor.logger import Logger, figures, run_name
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder

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
