"""Fixtures for tests on a real control plane.

Without its binaries the tests that need one are skipped with the command that builds them; where
`GPU_MIRAGE_REQUIRE_CONTROL_PLANE=1` is set they fail instead.
"""

import functools
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Protocol

import pytest

from hack.localcluster import (
    Binaries,
    BinariesMissing,
    ControllerProcess,
    ControlPlane,
    delete_nodes,
    find_binaries,
    install,
    make_nodes,
    wait_ready,
)

REQUIRE_VARIABLE = "GPU_MIRAGE_REQUIRE_CONTROL_PLANE"
NAMESPACE_DELETION_TIMEOUT = "60s"


class PoolNodes(Protocol):
    """Makes Ready nodes with unique names, `racks[clique]` of them per clique, and returns the names rack by rack."""

    def __call__(self, racks: Mapping[str, int], pool: str = ...) -> list[str]: ...


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "binaries" in item.fixturenames:
            item.add_marker("control_plane")


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


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for all tests of a run; what a test makes in it goes into its own namespace and nodes."""
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    with plane:
        yield plane
    plane.remove_state()


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with CRDs, DeviceClasses and RBAC from config/default."""
    install(control_plane)
    return control_plane


@pytest.fixture(scope="session")
def controller(installed: ControlPlane) -> Iterator[ControllerProcess]:
    """The compute-domain binary under its own ServiceAccount, running through all tests that need no other one."""
    process = ControllerProcess(installed)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def pool_nodes(control_plane: ControlPlane) -> Iterator[PoolNodes]:
    """A factory of pool nodes, all of which are deleted after the test."""
    made: list[str] = []

    def make(racks: Mapping[str, int], pool: str = "default") -> list[str]:
        names = make_nodes(control_plane, racks, prefix=f"node-{unique()}", pool=pool)
        made.extend(names)
        wait_ready(control_plane, names)
        return names

    yield make
    delete_nodes(control_plane, made)


@pytest.fixture(scope="session")
def used_namespaces(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Names of namespaces that were deleted after their tests; one that does not go, say for a finalizer, is an error.

    That is looked at once, after the last test, because each deletion takes more than 5 seconds.
    """
    names: list[str] = []
    yield names
    if names:
        timeout = f"--timeout={NAMESPACE_DELETION_TIMEOUT}"
        control_plane.kubectl("wait", "--for=delete", timeout, *(f"namespace/{name}" for name in names))


@pytest.fixture
def namespace(control_plane: ControlPlane, used_namespaces: list[str], pool_nodes: PoolNodes) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    # pool_nodes is asked for so that the nodes outlive the pods: a pod on a deleted node takes a minute to go.
    name = f"test-{unique()}"
    control_plane.create_namespace(name)
    yield name
    control_plane.delete_namespace(name)
    used_namespaces.append(name)


def unique() -> str:
    return uuid.uuid4().hex[:8]
