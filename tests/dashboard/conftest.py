"""Fixtures for browser tests: the browser, a page and the screenshot folder."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.dashboard.chromium import Browser, missing
from tests.dashboard.made_run import fill
from tests.node.dashboard.browser import served


@pytest.fixture(scope="session")
def pictures(request, tmp_path_factory):
    """Return the folder of --screenshots, or a temporary one."""
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def browser(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    with closing(Browser(tmp_path / "profile")) as window:
        yield window


@pytest.fixture
def site(request, tmp_path):
    """Serve the page of a node that stopped after 120 rounds, with the module's NAMES."""
    fill(tmp_path / "run", names=getattr(request.module, "NAMES", ()))
    with served(tmp_path / "run") as found:
        yield found
