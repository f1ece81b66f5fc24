import logging
import threading

import pytest


@pytest.fixture
def root_logger():
    """The root logger, which is afterwards as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.lastResort, threading.excepthook
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level, logging.lastResort, threading.excepthook = before
