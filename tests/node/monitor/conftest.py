import logging
import threading

import pytest


@pytest.fixture
def root_logger():
    """Yield the root logger and restore it afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.lastResort, threading.excepthook
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level, logging.lastResort, threading.excepthook = before
