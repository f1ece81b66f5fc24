import pytest


@pytest.fixture(autouse=True)
def alone(local_network: None) -> None:
    """Hear nothing that tests of another process announce."""
