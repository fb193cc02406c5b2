"""The framework's caches on both servers: streamed and listed, of metadata only, of some namespaces."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from controllers.runtime import Client, ClientOptions, Key, KubeObject, Resource, Selection
from controllers.runtime.cache import Informer, InformerOptions
from controllers.runtime.cache.feed import NOBODY
from controllers.runtime.errors import ResourceVersionTooLarge
from controllers.runtime.testing import eventually
from controllers.runtime.transport import AiohttpTransport, Credentials
from tests.contract.api_server import ApiServer

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = CONFIG_MAPS

    data: dict[str, str] = {}  # noqa: RUF012 - a struct copies its default


class ConfigMapOutline(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = CONFIG_MAPS
    metadata_only: ClassVar[bool] = True


class Namespace(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


@asynccontextmanager
async def client_of(server: ApiServer) -> AsyncIterator[Client]:
    transport = AiohttpTransport(Credentials(str(server.kubeconfig)))
    try:
        yield Client(transport, ClientOptions(field_manager="caches"))
    finally:
        await transport.close()
        await asyncio.sleep(0.1)  # connections with TLS are closed only once both ends have said goodbye


@asynccontextmanager
async def following(
    client: Client, kind: type[Any], *selections: Selection, **options: Any
) -> AsyncIterator[Informer[Any]]:
    informer = Informer(client, kind, selections or Selection(), InformerOptions(freeze_after_sync=False, **options))
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(10.0):
            await informer.wait_synced()
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def body(name: str, namespace: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": {"k": "größer"}}


def versions(items: Iterable[KubeObject]) -> dict[Key, str]:
    return {item.key: item.metadata.resource_version for item in items}


def soon(condition: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
    return eventually(condition, timeout=10.0)


@pytest.mark.parametrize("stream_lists", [True, False])
def test_a_streamed_state_is_the_listed_one_and_goes_on_as_a_watch(
    server: ApiServer, namespace: str, stream_lists: bool
) -> None:
    here = Selection(namespace)

    async def scenario() -> None:
        async with client_of(server) as client:
            for number in range(5):
                await client.create(ConfigMap, body(f"before-{number}", namespace))
            async with following(client, ConfigMap, here, page_size=2, stream_lists=stream_lists) as informer:
                assert versions(informer.store.list()) == versions(await client.list(ConfigMap, here))
                made = await client.create(ConfigMap, body("later", namespace))
                await soon(lambda: informer.store.get(made.key) == made)
                assert (informer.statistics().lists, informer.statistics().watches) == (1, 1)
                assert informer.last_error == ""

    asyncio.run(scenario())


def test_both_servers_stream_whole_kinds_and_nothing_is_listed_instead(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        async with client_of(server) as client, following(client, Namespace) as informer:
            assert Key("", "default") in versions(informer.store.list())
            assert informer.statistics().lists == 1

    asyncio.run(scenario())
    assert "does not stream" not in caplog.text
    assert "a watch broke" not in caplog.text


@pytest.mark.parametrize("stream_lists", [True, False])
def test_a_cache_of_metadata_follows_lists_and_watches_of_metadata(
    server: ApiServer, namespace: str, stream_lists: bool
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client:
            before = await client.create(ConfigMap, body("before", namespace))
            async with following(client, ConfigMapOutline, Selection(namespace), stream_lists=stream_lists) as informer:
                assert versions(informer.store.list())[before.key] == before.metadata.resource_version
                made = await client.create(ConfigMap, body("made", namespace, l="1"))
                await soon(lambda: made.key in versions(informer.store.list()))
                seen = informer.store.get(made.key)
                assert seen == ConfigMapOutline(metadata=made.metadata)
                await client.delete(made)
                await soon(lambda: made.key not in versions(informer.store.list()))
                assert informer.statistics().undecodable == 0
            assert await client.get(ConfigMapOutline, "before", namespace) == ConfigMapOutline(metadata=before.metadata)

    asyncio.run(scenario())


def test_a_cache_of_two_namespaces_sees_what_each_of_them_selects(server: ApiServer, namespace: str) -> None:
    other = f"{namespace}-2"
    server.create("/api/v1/namespaces", {"metadata": {"name": other}})
    selections = (Selection(namespace), Selection(other, labels="l=1"))

    async def scenario() -> None:
        async with client_of(server) as client, following(client, ConfigMap, *selections) as informer:
            for each in (namespace, other):
                await client.create(ConfigMap, body("plain", each))
                await client.create(ConfigMap, body("labelled", each, l="1"))
            expected = {Key(namespace, "plain"), Key(namespace, "labelled"), Key(other, "labelled")}
            await soon(
                lambda: (
                    {key for key in versions(informer.store.list()) if key.name in ("plain", "labelled")} == expected
                )
            )

    asyncio.run(scenario())
    server.send("DELETE", f"/api/v1/namespaces/{other}")


def test_a_list_of_nobody_tells_whether_a_version_is_reached(server: ApiServer, namespace: str) -> None:
    nobody = Selection(namespace, fields=f"metadata.name={NOBODY}")

    async def scenario() -> None:
        async with client_of(server) as client:
            made = await client.create(ConfigMap, body("there", namespace))
            version = made.metadata.resource_version
            assert (await client.list_page(ConfigMap, nobody, limit=0, resource_version=version)).items == ()
            with pytest.raises(ResourceVersionTooLarge):
                await client.list_page(ConfigMap, nobody, limit=0, resource_version=str(int(version) + 1_000_000))

    asyncio.run(scenario())
