"""The sandbox in other people's tests: fixtures for pytest, and accounts with exactly the rights that are declared.

No plugin is loaded: a ``conftest.py`` imports the fixtures that its tests use::

    from controllers.sandbox.testing import sandbox, sandbox_namespace, sandbox_process, shared_sandbox

    __all__ = ["sandbox", "sandbox_namespace", "sandbox_process", "shared_sandbox"]

``controllers.runtime.testing`` cannot have them, as the framework does not know the sandbox.
"""

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest  # deptry: ignore[DEP004]

from controllers.runtime.rbac import Declaration, Permission, rules
from controllers.sandbox.access import RBAC
from controllers.sandbox.cluster import Cluster
from controllers.sandbox.lifecycle import Deletion
from controllers.sandbox.process import SandboxProcess
from controllers.sandbox.sandbox import Sandbox

__all__ = ["SandboxProcess", "account_for", "sandbox", "sandbox_namespace", "sandbox_process", "shared_sandbox"]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A sandbox of the test's own, in a thread: whatever a test does to it, no other test sees it."""
    with Sandbox() as running:
        yield running


@pytest.fixture(scope="session")
def shared_sandbox() -> Iterator[Sandbox]:
    """One sandbox for all tests of a run, for those that keep to a namespace of their own."""
    with Sandbox() as running:
        yield running


@pytest.fixture
def sandbox_namespace(shared_sandbox: Sandbox) -> Iterator[str]:
    """A namespace of the test's own in ``shared_sandbox``. After the test it is deleted, and faults are taken back."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    shared_sandbox.call(lambda cluster: cluster.ensure("Namespace", "", {"metadata": {"name": name}}))
    yield name
    shared_sandbox.clear_faults()
    shared_sandbox.call(lambda cluster: _delete_namespace(cluster, name))


@pytest.fixture
def sandbox_process(tmp_path: Path) -> Iterator[SandboxProcess]:
    """A sandbox in a process of its own that keeps its state, so that it can be killed and started again."""
    with SandboxProcess(tmp_path, (f"--data-dir={tmp_path / 'data'}", "--admin")) as running:
        yield running


def account_for(sandbox: Sandbox, declaration: Declaration, path: Path, namespace: str = "default") -> Path:
    """Writes a kubeconfig of an account that may do what a controller declares and nothing else; returns ``path``.

    The account, and the Role for what is declared of the driver's namespace, are made in ``namespace``. A controller
    that runs with it shows whether its declaration is enough, since the sandbox enforces RBAC.
    """
    sandbox.call(lambda cluster: _grant(cluster, declaration, namespace))
    return sandbox.kubeconfig_for(namespace, declaration.name, path)


def _grant(cluster: Cluster, declaration: Declaration, namespace: str) -> None:
    cluster.ensure("ServiceAccount", namespace, {"metadata": {"name": declaration.name}})
    subject = {"kind": "ServiceAccount", "name": declaration.name, "namespace": namespace}
    _bind(cluster, "ClusterRole", "", declaration.cluster, subject)
    _bind(cluster, "Role", namespace, declaration.driver_namespace, subject)


def _bind(cluster: Cluster, kind: str, namespace: str, granted: Iterable[Permission], subject: dict[str, Any]) -> None:
    metadata = {"name": subject["name"]}
    reference = {"apiGroup": RBAC, "kind": kind, "name": subject["name"]}
    cluster.ensure(kind, namespace, {"metadata": metadata, "rules": rules(granted)}, RBAC)
    cluster.ensure(
        f"{kind}Binding", namespace, {"metadata": metadata, "subjects": [subject], "roleRef": reference}, RBAC
    )


def _delete_namespace(cluster: Cluster, name: str) -> None:
    info = cluster.registry.by_kind("", "Namespace")
    assert info is not None
    if cluster.store.get(info.collection, name) is not None:
        cluster.delete(info, "", name, Deletion(), dry_run=False)
