"""Tests of ``widget`` on a sandbox, under exactly the declared rights."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from widget import CATALOGUE, DECLARATION, FINALIZER, ConfigMap, Widget, setup

from controllers.runtime import Client, KubeObject, Resource, conditions
from controllers.runtime.testing import connected, eventually, running
from controllers.sandbox import Sandbox
from controllers.sandbox.testing import account_for

CRD = Path(__file__).with_name("widget-crd.yaml")
WIDGET = {
    "metadata": {"name": "door", "namespace": "default"},
    "spec": {"colourFrom": {"configMap": "paint"}, "labelURL": "https://example.com/door"},
}
PAINT = {"metadata": {"name": "paint", "namespace": "default"}, "data": {"colour": "red"}}


class CustomResourceDefinition(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    )


class Event(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)

    reason: str = ""
    reporting_controller: str = ""


async def the_door(admin: Client) -> Widget:
    return await admin.get(Widget, "door", "default")


async def entry(admin: Client) -> ConfigMap | None:
    return await admin.find(ConfigMap, "default.door", CATALOGUE)


def play(sandbox: Sandbox, account: Path, scenario: Callable[[Client], Awaitable[None]]) -> None:
    """Plays a scenario as the administrator while the controller runs with the declared rights and no others."""

    async def whole() -> None:
        async with connected(sandbox.kubeconfig) as admin, connected(account) as client:
            await admin.create(CustomResourceDefinition, yaml.safe_load(CRD.read_text()))
            async with running(client, setup):
                await admin.create(Widget, WIDGET)
                await scenario(admin)

    asyncio.run(whole())


@pytest.fixture
def account(sandbox: Sandbox, tmp_path: Path) -> Path:
    return account_for(sandbox, DECLARATION, tmp_path / "account", CATALOGUE)


def test_a_widget_without_a_colour_says_so_until_there_is_one(sandbox: Sandbox, account: Path) -> None:
    async def scenario(admin: Client) -> None:
        async def waits() -> bool:
            ready = conditions.find((await the_door(admin)).status.conditions, "Ready")
            return ready is not None and ready.reason == "NoColour" and ready.observed_generation == 1

        async def is_red() -> bool:
            door = await the_door(admin)
            return door.status.colour == "red" and conditions.is_true(door.status.conditions, "Ready")

        async def event() -> Event | None:
            return next((found for found in await admin.list(Event) if found.reason == "NoColour"), None)

        assert await eventually(waits)
        said = await eventually(event)
        assert said is not None
        assert said.reporting_controller == "gpu-mirage/widgets"
        await admin.create(ConfigMap, PAINT)
        assert await eventually(is_red)

    play(sandbox, account, scenario)


def test_an_entry_that_somebody_deletes_comes_back(sandbox: Sandbox, account: Path) -> None:
    async def scenario(admin: Client) -> None:
        first = await eventually(lambda: entry(admin))
        assert first is not None
        assert first.data == {"colour": "", "url": "https://example.com/door"}
        await admin.delete(first)

        async def is_another() -> bool:
            present = await entry(admin)
            return present is not None and present.uid != first.uid

        assert await eventually(is_another)

    play(sandbox, account, scenario)


def test_a_widget_takes_its_entry_with_it(sandbox: Sandbox, account: Path) -> None:
    async def scenario(admin: Client) -> None:
        async def held() -> bool:
            return FINALIZER in (await the_door(admin)).metadata.finalizers and await entry(admin) is not None

        async def is_gone() -> bool:
            return await admin.find(Widget, "door", "default") is None

        assert await eventually(held)
        await admin.delete(await the_door(admin))
        assert await eventually(is_gone)
        assert await entry(admin) is None

    play(sandbox, account, scenario)


def test_a_definition_may_come_after_the_controller(sandbox: Sandbox, account: Path) -> None:
    async def whole() -> None:
        async with (
            connected(sandbox.kubeconfig) as admin,
            connected(account) as client,
            running(client, setup) as manager,
        ):

            def misses_the_kind() -> bool:
                return "404" in (manager.informer(Widget).last_error or "")

            assert await eventually(misses_the_kind)
            await admin.create(CustomResourceDefinition, yaml.safe_load(CRD.read_text()))
            await eventually(manager.elected.is_set, timeout=30.0)

    asyncio.run(whole())
