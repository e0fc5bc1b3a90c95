import pytest

from tidegate.testing import DevServer


@pytest.fixture(scope="session")
def shared_server():
    with DevServer() as server:
        yield server


@pytest.fixture
def server():
    """A server of its own, for tests that move the clock."""
    with DevServer() as server:
        yield server
