import pytest


@pytest.fixture(autouse=True)
def alone(local_network: None) -> None:
    """Receive no announcements from tests of another process."""
