"""The sandbox in other people's tests: each fixture is as isolated as it says, accounts have the rights declared."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from controllers.api.core import Namespace, Node
from controllers.runtime import Client, KubeObject, Resource
from controllers.runtime.errors import ApiError
from controllers.runtime.rbac import Declaration, permissions
from controllers.runtime.testing import connected
from controllers.sandbox import Fault, Sandbox
from controllers.sandbox.testing import (
    SandboxProcess,
    account_for,
    sandbox,
    sandbox_namespace,
    sandbox_process,
    shared_sandbox,
)

__all__ = ["sandbox", "sandbox_namespace", "sandbox_process", "shared_sandbox"]


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)

    data: Mapping[str, str] = {}


DECLARATION = Declaration(
    "librarian",
    cluster=permissions(Namespace, "get"),
    driver_namespace=permissions(ConfigMap, "create", "get"),
)


def make_map(kubeconfig: Path, name: str, namespace: str = "default") -> None:
    async def create() -> None:
        async with connected(kubeconfig) as client:
            await client.create(ConfigMap, {"metadata": {"name": name, "namespace": namespace}})

    asyncio.run(create())


def has_map(kubeconfig: Path, name: str, namespace: str = "default") -> bool:
    async def find() -> bool:
        async with connected(kubeconfig) as client:
            return await client.find(ConfigMap, name, namespace) is not None

    return asyncio.run(find())


@pytest.mark.parametrize("_round", [1, 2])
def test_each_test_has_a_sandbox_of_its_own(sandbox: Sandbox, _round: int) -> None:
    assert not has_map(sandbox.kubeconfig, "a")
    make_map(sandbox.kubeconfig, "a")


used: list[str] = []


@pytest.mark.parametrize("_round", [1, 2])
def test_each_test_has_a_namespace_of_its_own_without_the_faults_of_others(
    shared_sandbox: Sandbox, sandbox_namespace: str, _round: int
) -> None:
    assert sandbox_namespace not in used
    assert shared_sandbox.faults == ()
    if used:
        assert not has_map(shared_sandbox.kubeconfig, "a", used[0])
    make_map(shared_sandbox.kubeconfig, "a", sandbox_namespace)
    used.append(sandbox_namespace)
    shared_sandbox.add_faults(Fault(do="stall", times=0))


def test_namespace_that_the_test_itself_deletes_is_no_trouble_afterwards(
    shared_sandbox: Sandbox, sandbox_namespace: str
) -> None:
    async def delete() -> None:
        async with connected(shared_sandbox.kubeconfig) as client:
            await client.delete(await client.get(Namespace, sandbox_namespace))

    asyncio.run(delete())


def test_process_goes_on_after_a_crash_where_it_was_and_ends_with_the_block(sandbox_process: SandboxProcess) -> None:
    url = sandbox_process.url
    make_map(sandbox_process.kubeconfig, "a")
    sandbox_process.kill()
    sandbox_process.start()
    assert sandbox_process.url == url
    assert has_map(sandbox_process.kubeconfig, "a")
    sandbox_process.stop()
    sandbox_process.stop()


def test_process_that_cannot_start_shows_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"exit code 1[^$]*--allow-remote"),
        SandboxProcess(tmp_path, ["--host=0.0.0.0"]),
    ):
        pass


def test_account_may_do_what_is_declared_and_nothing_else(sandbox: Sandbox, tmp_path: Path) -> None:
    async def refusals(client: Client) -> list[int]:
        codes = []
        await client.get(Namespace, "default")
        await client.create(ConfigMap, {"metadata": {"name": "a", "namespace": "kube-system"}})
        for attempt in (
            client.create(ConfigMap, {"metadata": {"name": "a", "namespace": "default"}}),
            client.list(Node),
            client.list(Namespace),
        ):
            with pytest.raises(ApiError) as refused:
                await attempt
            codes.append(refused.value.code)
        return codes

    async def scenario() -> list[int]:
        async with connected(account_for(sandbox, DECLARATION, tmp_path / "account", "kube-system")) as client:
            return await refusals(client)

    assert asyncio.run(scenario()) == [403, 403, 403]
