"""Fixtures for tests in an environment: on the sandbox and on a real control plane.

Without the binaries of the latter the tests that need it are skipped with the command that builds them; where
`GPU_MIRAGE_REQUIRE_CONTROL_PLANE=1` is set they fail instead.
"""

import functools
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pytest

from hack.localcluster import (
    LOCAL,
    Binaries,
    BinariesMissing,
    ControllerProcess,
    Environment,
    delete_nodes,
    find_binaries,
    install,
    make_nodes,
    wait_ready,
)
from hack.localcluster.polling import wait_until
from tests.integration.environments import BOTH, started

REQUIRE_VARIABLE = "GPU_MIRAGE_REQUIRE_CONTROL_PLANE"
NAMESPACE_DELETION_TIMEOUT = 60.0  # seconds


class PoolNodes(Protocol):
    """Makes Ready nodes with unique names, `racks[clique]` of them per clique, and returns the names rack by rack."""

    def __call__(self, racks: Mapping[str, int], pool: str = ...) -> list[str]: ...


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and needs_control_plane(item):
            item.add_marker("control_plane")


def needs_control_plane(item: pytest.Function) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return "binaries" in item.fixturenames or LOCAL in parameters.values()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Here and not in the fixture: pytest reports skips of one place as one line, and those of a fixture once per test.
    if item.get_closest_marker("control_plane") and (missing := missing_binaries()):
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            pytest.fail(f"{REQUIRE_VARIABLE} is set, but {missing}", pytrace=False)
        pytest.skip(missing)


@functools.cache
def missing_binaries() -> str | None:
    """Why there can be no control plane, None where there can."""
    try:
        find_binaries()
    except BinariesMissing as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The executables. A test that starts a control plane of its own asks for them and so is skipped without them."""
    return find_binaries()


@pytest.fixture(scope="session", params=BOTH)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """One of each sort for all tests of a run; what a test makes in it goes into its own namespace and nodes."""
    with started(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="session")
def installed(environment: Environment) -> Environment:
    """The cluster with CRDs, DeviceClasses and RBAC from config/default."""
    install(environment)
    return environment


@pytest.fixture(scope="session")
def controller(installed: Environment, used_namespaces: list[str]) -> Iterator[ControllerProcess]:
    """The compute-domain binary under its own ServiceAccount, running through all tests that need no other one."""
    process = ControllerProcess(installed)
    process.start()
    yield process
    # Domains have finalizers that only the controller takes off.
    wait_gone(installed, used_namespaces)
    process.stop()


@pytest.fixture
def pool_nodes(environment: Environment) -> Iterator[PoolNodes]:
    """A factory of pool nodes, all of which are deleted after the test."""
    made: list[str] = []

    def make(racks: Mapping[str, int], pool: str = "default") -> list[str]:
        names = make_nodes(environment, racks, prefix=f"node-{unique()}", pool=pool)
        made.extend(names)
        wait_ready(environment, names)
        return names

    yield make
    delete_nodes(environment, made)


@pytest.fixture(scope="session")
def used_namespaces(environment: Environment) -> Iterator[list[str]]:
    """Names of namespaces that were deleted after their tests; one that does not go, say for a finalizer, is an error.

    That is looked at once, after the last test, because on a control plane each deletion takes more than 5 seconds.
    """
    names: list[str] = []
    yield names
    wait_gone(environment, names)


def wait_gone(environment: Environment, namespaces: Sequence[str]) -> None:
    # All of them by one list at a time: kubectl waits for each by itself, and paces its requests.
    def left() -> set[str]:
        present = environment.kubectl("get", "namespaces", "--output=name").split()
        return {name.removeprefix("namespace/") for name in present}.intersection(namespaces)

    if namespaces:
        wait_until(lambda: not left(), NAMESPACE_DELETION_TIMEOUT, "the end of the tests' namespaces", interval=0.5)


@pytest.fixture
def namespace(environment: Environment, used_namespaces: list[str], pool_nodes: PoolNodes) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    # pool_nodes is asked for so that the nodes outlive the pods: a pod on a deleted node takes a minute to go.
    name = f"test-{unique()}"
    environment.create_namespace(name)
    yield name
    environment.delete_namespace(name)
    used_namespaces.append(name)


def unique() -> str:
    return uuid.uuid4().hex[:8]
