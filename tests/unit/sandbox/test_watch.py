"""Watchers: cut off when the window overtakes them, refused when they come from before it."""

import msgspec
import pytest

from controllers.sandbox.cluster import Cluster, WriteOptions
from controllers.sandbox.errors import StatusError
from controllers.sandbox.storage import Forgotten
from controllers.sandbox.watch import Watcher, WatchOptions


def cluster_with_maps(count: int, *, window: int) -> Cluster:
    cluster = Cluster(window=window)
    cluster.ensure("Namespace", "", {"metadata": {"name": "n"}})
    for number in range(count):
        make(cluster, f"m{number}")
    return cluster


def make(cluster: Cluster, name: str) -> None:
    info = cluster.registry.find("", "v1", "configmaps")
    assert info is not None
    cluster.create(info, "n", {"metadata": {"name": name}}, WriteOptions())


def watcher(cluster: Cluster, version: str) -> Watcher:
    info = cluster.registry.find("", "v1", "configmaps")
    assert info is not None
    return Watcher(cluster, info, WatchOptions(namespace="n", resource_version=version), None)


def test_version_before_the_window_is_too_old() -> None:
    cluster = cluster_with_maps(50, window=5)
    with pytest.raises(StatusError) as refused:
        watcher(cluster, "2").start()
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.message.startswith("too old resource version: 2 (")


def test_watcher_that_never_reads_is_overtaken() -> None:
    cluster = cluster_with_maps(1, window=5)
    slow = watcher(cluster, str(cluster.store.version))
    assert list(slow.start()) == []
    for number in range(20):
        make(cluster, f"late{number}")
    with pytest.raises(Forgotten):
        slow.advance()


def test_watcher_reads_in_batches_without_gap_or_repetition() -> None:
    cluster = cluster_with_maps(1, window=5000)
    reader = watcher(cluster, str(cluster.store.version))
    assert list(reader.start()) == []
    for number in range(1200):
        make(cluster, f"late{number}")
    names: list[str] = []
    more = True
    while more:
        lines, more = reader.advance()
        names += [msgspec.json.decode(line)["object"]["metadata"]["name"] for line in lines.splitlines()]
    assert names == [f"late{number}" for number in range(1200)]


def test_bookmark_is_never_behind_what_was_asked_for() -> None:
    cluster = cluster_with_maps(1, window=5)
    early = watcher(cluster, "999999")
    assert list(early.start()) == []
    make(cluster, "unseen")
    assert early.advance() == (b"", False)
    assert msgspec.json.decode(early.bookmark())["object"]["metadata"]["resourceVersion"] == "999999"
