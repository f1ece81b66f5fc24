"""Property tests judge results, never how long a busy machine took; Ctrl-C can be tested."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests of the dashboard leave what they saw."""
    parser.addoption("--screenshots", metavar="DIR", help="keep a picture of every view in DIR")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in whatever a script starts with "&"; every process of a test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
