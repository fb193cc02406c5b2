"""Tests of ``team_configmap``: its reconciler alone on virtual time, and the whole of it on a sandbox."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import team_configmap
from team_configmap import DECLARATION, ConfigMap, TeamReconciler

from controllers.api.core import Namespace
from controllers.runtime import Client, ClientOptions, Key, ObjectMeta
from controllers.runtime.cache import Store
from controllers.runtime.testing import Answer, ScriptedTransport, connected, eventually, run_virtual, running
from controllers.sandbox import Fault, Sandbox
from controllers.sandbox.testing import account_for

SHOP = {"metadata": {"name": "shop", "labels": {"team": "payments"}}}


def reconcile(server: ScriptedTransport, *labelled: Namespace) -> None:
    namespaces, maps = Store[Namespace](), Store[ConfigMap]()
    for namespace in labelled:
        namespaces.put(namespace)
    reconciler = TeamReconciler(Client(server, ClientOptions("test")), namespaces, maps)
    run_virtual(reconciler.reconcile(Key("", "shop")))


def test_a_labelled_namespace_is_answered_with_its_team() -> None:
    server = ScriptedTransport([Answer(body={"metadata": {"name": "team", "namespace": "shop", "uid": "2"}})])
    reconcile(server, Namespace(metadata=ObjectMeta(name="shop", uid="1", labels={"team": "payments"})))

    (request,) = server.requests
    assert json.loads(request.body or b"")["data"] == {"team": "payments"}


def test_a_namespace_that_is_gone_needs_no_request() -> None:
    server = ScriptedTransport([])
    reconcile(server)

    assert server.requests == []


def on_sandbox(sandbox: Sandbox, kubeconfig: Path, scenario: Callable[[Client], Awaitable[None]]) -> None:
    """Plays a scenario as the administrator while the controller runs as the user of a kubeconfig."""

    async def play() -> None:
        async with (
            connected(sandbox.kubeconfig) as admin,
            connected(kubeconfig) as client,
            running(client, team_configmap.setup),
        ):
            await scenario(admin)

    asyncio.run(play())


async def team_of_shop(client: Client) -> ConfigMap | None:
    return await client.find(ConfigMap, "team", "shop")


def test_a_map_that_somebody_deletes_comes_back(sandbox: Sandbox) -> None:
    async def scenario(admin: Client) -> None:
        await admin.create(Namespace, SHOP)
        first = await eventually(lambda: team_of_shop(admin))
        assert first is not None
        await admin.delete(first)

        async def is_another() -> bool:
            present = await team_of_shop(admin)
            return present is not None and present.uid != first.uid

        await eventually(is_another)

    on_sandbox(sandbox, sandbox.kubeconfig, scenario)


def test_the_declared_rights_are_enough(sandbox: Sandbox, tmp_path: Path) -> None:
    async def scenario(admin: Client) -> None:
        await admin.create(Namespace, SHOP)
        await eventually(lambda: team_of_shop(admin))

    on_sandbox(sandbox, account_for(sandbox, DECLARATION, tmp_path / "account"), scenario)


def test_an_overloaded_server_is_asked_again(sandbox: Sandbox) -> None:
    async def scenario(admin: Client) -> None:
        sandbox.add_faults(Fault(do="refuse", verbs=("patch",), resource="configmaps", code=429, retry_after=1))
        await admin.create(Namespace, SHOP)
        await eventually(lambda: team_of_shop(admin))
        assert sandbox.struck == 1

    on_sandbox(sandbox, sandbox.kubeconfig, scenario)
