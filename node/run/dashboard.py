"""The dashboard beside a node: it comes and goes with it, and is missed by nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.config.config import Config
from node.errors import NodeError
from node.run.status_file import StatusFile
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

log = logging.getLogger(__name__)


@contextmanager
def dashboard(
    config: Config,
    folder: RunFolder,
    counters: Counters,
    status: StatusFile,
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Serve the page of a node, if its config asks for it, as long as the block lasts.

    Where it cannot be served that is said, and counted (``dashboard_failures``).

    Args:
        status: keeps saying where it is found.
        tell: told that once.
    """
    wanted = config.monitor.dashboard
    if not wanted:
        yield
        return
    # late: a node without a dashboard needs none of it
    from node.dashboard.server import Dashboard

    try:
        served = Dashboard(folder, config, wanted, counters, status.serve)
    except NodeError as error:
        counters.add("dashboard_failures")
        log.warning("%s", error)
        yield
        return
    tell(f"look at it in a browser: {served.url}")
    try:
        yield
    finally:
        served.close()
