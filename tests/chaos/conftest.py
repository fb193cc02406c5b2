"""The fixtures of the integration tests, for tests that break things."""

from tests.integration.conftest import binaries, pytest_collection_modifyitems, pytest_runtest_setup

__all__ = ["binaries", "pytest_collection_modifyitems", "pytest_runtest_setup"]
