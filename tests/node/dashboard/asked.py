"""A run folder with a policy, and a client that asks it questions."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from node.dashboard.app import ASKED_BY
from node.network.creation import create_swarm
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.node.dashboard.browser import Site
from tests.support import saved_policy

OWN_PAGE = {"Sec-Fetch-Site": "same-origin", ASKED_BY[0]: ASKED_BY[1]}
LONG = 120.0
CREATOR = Identity.from_seed(b"\x07" * 32)


def trained(root: Path) -> RunFolder:
    """Return the folder of a node with one checkpoint."""
    folder = RunFolder(root).create()
    folder.manifest.write_bytes(create_swarm(CREATOR, name="sums"))
    Checkpoints(folder.checkpoints, keep=3).save(10, saved_policy, {"round": 10, "policy_step": 7})
    return folder


class Asked:
    def __init__(self, site: Site, **query: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=LONG)
        self._connection.request("GET", f"/api/v1/ask?{urlencode(query)}", headers=OWN_PAGE)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._answer.readline():
            yield json.loads(line)

    def until(self, event: str) -> dict[str, Any]:
        """Return the next event of that name."""
        return next(each for each in self if each["event"] == event)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def answered(site: Site, **query: str) -> list[dict[str, Any]]:
    with closing(Asked(site, **query)) as asked:
        assert asked.status == 200
        return list(asked)


def answering() -> list[psutil.Process]:
    """Return the child processes that generate answers."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # The process just ended.
            if "node.evaluation.ask" in process.cmdline():
                found.append(process)
    return found
